"""The golden runs: `python -m tests.golden.run` writes them anew, see README.md."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cflower.runs.run_files import read_lines
from tests.command import cflower

HERE = Path(__file__).parent
RUN = (
    "shift='label-permutation' num-groups=2 dataset-size=600 model='linear' num-server-rounds=8 "
    "learning-rate=0.1 local-epochs=3 partitioner='iid' seed=0 "
)
CRITERIA = {
    "auto": "split-criterion='auto'",
    "norms": "split-criterion='norms' eps1=0.6 eps2=0.7 gamma-max=0.2 min-cluster-size=2",
}
KEPT = ("round", "cluster", "members", "decision", "mean_norm", "max_norm", "alpha_cross")


def trained(criterion: str) -> list[dict[str, Any]]:
    """The run's rounds, as far as they do not depend on the machine."""
    with TemporaryDirectory() as folder:
        config = RUN + CRITERIA[criterion]
        done = cflower("simulate", "--clients", 6, "--out", folder, "-c", config)
        assert done.returncode == 0, done.stderr
        (rounds,) = Path(folder).glob("*/rounds.jsonl")
        lines = read_lines(rounds)
    return [{**{key: line[key] for key in KEPT}, **line["metrics"]} for line in lines]


def kept(criterion: str) -> list[dict[str, Any]]:
    """What the run was when it was last written."""
    text = (HERE / f"{criterion}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def main() -> None:
    """Write the files."""
    for criterion in CRITERIA:
        lines = (
            {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in line.items()}
            for line in trained(criterion)
        )
        (HERE / f"{criterion}.jsonl").write_text("".join(json.dumps(n) + "\n" for n in lines))


if __name__ == "__main__":
    main()
