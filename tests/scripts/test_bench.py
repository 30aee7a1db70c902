import pytest

from tests.command import script


@pytest.mark.slow
def test_the_benchmark_still_runs():
    names = "aggregation,decisions,growth,personal,pfl,rounds,start,written"
    printed = script("run.py", "bench", "--quick", "--only", names)
    for figure in (
        "no split",
        "split by auto",
        "peak",
        "decision of",
        "personal step",
        "a round",
        "--help",
        "writes",
        "server round, 4 leaves",
    ):
        assert figure in printed
