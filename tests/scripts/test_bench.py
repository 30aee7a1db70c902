import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.slow
def test_the_benchmark_still_runs():
    names = "aggregation,decisions"
    done = subprocess.run(
        [sys.executable, SCRIPTS / "run.py", "bench", "--quick", "--only", names],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for figure in (
        "no split",
        "split by auto",
        "peak",
        "decision of",
    ):
        assert figure in done.stdout
