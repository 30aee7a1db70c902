import pytest

from tests.command import script


@pytest.mark.slow
def test_the_benchmark_still_runs():
    names = "aggregation,decisions"
    printed = script("run.py", "bench", "--quick", "--only", names)
    for figure in ("no split", "split by auto", "peak", "decision of"):
        assert figure in printed
