"""The golden runs: `python -m tests.golden.run` writes them anew, see README.md."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.command import cflower
from tests.run_content import read_json, read_lines

HERE = Path(__file__).parent
RUN = (
    "shift='label-permutation' num-groups=2 dataset-size=600 model='linear' num-server-rounds=10 "
    "learning-rate=0.1 local-epochs=3 partitioner='iid' seed=0 "
)
CRITERIA = {
    "norms": "split-criterion='norms' eps1=0.6 eps2=0.7 gamma-max=0.2 min-cluster-size=2",
    "auto": "split-criterion='auto'",
}
FILES = ("config.json", "summary.json", "tree.json", "clients.json", "examples.json")
FIELDS = HERE / "fields.txt"
NAME = re.compile(r"^(partition-\d+|0(\.\d+)*)$")
KEPT = ("round", "cluster", "members", "decision", "mean_norm", "max_norm", "alpha_cross")


@contextmanager
def trained(criterion: str) -> Iterator[Path]:
    """The run's folder."""
    with TemporaryDirectory() as folder:
        config = RUN + CRITERIA[criterion]
        done = cflower("simulate", "--clients", 6, "--out", folder, "-c", config)
        assert done.returncode == 0, done.stderr
        (rounds,) = Path(folder).glob("*/rounds.jsonl")
        yield rounds.parent


def rounds_of(run: Path) -> list[dict[str, Any]]:
    """The run's rounds, as far as they do not depend on the machine."""
    lines = read_lines(run / "rounds.jsonl")
    return [{**{key: line[key] for key in KEPT}, **line["metrics"]} for line in lines]


def fields_of(run: Path) -> list[str]:
    """Every field in the run's JSON files, with the types of its values."""
    contents = {name: read_json(run, name) for name in FILES}
    contents["config.json"] |= {"config": {}, "settings": {}}  # other tests are about these
    return sorted({*fields(contents), *fields({"rounds.jsonl": read_lines(run / "rounds.jsonl")})})


def fields(value: Any, path: str = "") -> Iterator[str]:
    """The path to each value in a JSON value, with its type; a name in a path is ``*``."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from fields(part, f"{path} {NAME.sub('*', key)}")
    elif isinstance(value, list):
        for part in value:
            yield from fields(part, f"{path} []")
    else:
        yield f"{path.strip()}: {type(value).__name__}"


def kept(criterion: str) -> list[dict[str, Any]]:
    """What the run was when it was last written."""
    text = (HERE / f"{criterion}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def main() -> None:
    """Write the files."""
    for criterion in CRITERIA:
        with trained(criterion) as run:
            FIELDS.write_text("\n".join(fields_of(run)) + "\n")
            rounds = rounds_of(run)
        lines = (
            {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in line.items()}
            for line in rounds
        )
        (HERE / f"{criterion}.jsonl").write_text("".join(json.dumps(n) + "\n" for n in lines))


if __name__ == "__main__":
    main()
