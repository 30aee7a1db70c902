import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from reproduce import KEPT, all_experiments, make
from reproduction.experiment import Setting

EXPERIMENTS = all_experiments()
TEXT = (KEPT.parents[1] / "reproduction.md").read_text()
# Costs 110 s of CPU, nearly all of it processes that start: `test_deployment.py` starts the same
# federation with the same script, and runs on it.
OWN_PROCESSES = "tutorial-processes"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != OWN_PROCESSES])
def test_every_experiment_still_runs(name: str, tmp_path: Path) -> None:
    make(EXPERIMENTS[name], Setting(quick=True, out=tmp_path), tmp_path, redraw=False)
    assert (tmp_path / f"{name}.json").stat().st_size > 2
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_what_is_kept_can_be_drawn_and_is_described(path: Path, tmp_path: Path) -> None:
    assert f"### {path.stem}" in TEXT
    EXPERIMENTS[path.stem].draw(json.loads(path.read_text()), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
