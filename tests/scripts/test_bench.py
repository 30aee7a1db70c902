import pytest

from tests.command import script


@pytest.mark.slow
def test_the_benchmark_still_runs():
    names = "similarity,bipartition,aggregation,decisions,growth"
    printed = script("bench.py", "--quick", "--only", names)
    for figure in (
        "norms + cosines",
        "bipartition, m = 100",
        "no split",
        "split by auto",
        "peak",
        "decision of",
        "slope over clients",
    ):
        assert figure in printed
