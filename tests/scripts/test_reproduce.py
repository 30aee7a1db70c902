from pathlib import Path

import pytest
from reproduction.experiment import Setting
from reproduction.reproduce import KEPT, all_experiments, make

EXPERIMENTS = all_experiments()
TEXT = (Path(__file__).parents[2] / "docs/evidence/reproduction.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_still_runs(name: str, tmp_path: Path) -> None:
    make(EXPERIMENTS[name], Setting(quick=True, out=tmp_path), tmp_path)
    assert (tmp_path / f"{name}.json").stat().st_size > 2


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_what_is_kept_is_described(path: Path) -> None:
    assert path.stem in EXPERIMENTS
    assert f"run.py {path.stem}" in TEXT
