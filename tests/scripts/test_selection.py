"""`scripts/selection.py` on what the battery keeps."""

import csv
import json

import pytest
from selection import COLUMNS, Served, beyond_chance, line_of, main, served

from tests.command import script


@pytest.mark.slow
def test_it_judges_the_models_that_the_battery_kept(tmp_path, capsys):
    options = ["--criterion", "norms-0.4-1.6,federated", "--families", "rotation-2", "--seeds", "0"]
    options += ["--rounds", "2", "--set", "dataset-size=300 local-epochs=1 eps1=9.0 eps2=0.01"]
    script("battery.py", *options, "--keep", "--out", tmp_path)
    kept = tmp_path / "runs"
    split, flat = (
        next((kept / f"digits--rotation-2--{rule}--0").iterdir())
        for rule in ("norms-0.4-1.6", "federated")
    )
    clients = json.loads((split / "summary.json").read_text())["clients"]
    assert any(len(client["levels"]) > 1 for client in clients.values())
    columns = {"root": "fl", "leaf": "leaf", "best": "best", "ensemble": "ensemble"}
    for client, found in zip(clients.values(), served(split, flat), strict=True):
        for column, name in columns.items():
            assert found.right[column] / found.examples == client[f"{name}_accuracy"]
    (kept / "digits--rotation-2--norms-0.4-1.6--0").rename(kept / "digits--rotation-2--auto--0")
    main(tmp_path, tmp_path / "table.csv")
    assert "rotation-2" in capsys.readouterr().out
    lines = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [line["family"] for line in lines] == ["rotation-2", "all"]


def client(best: int, baseline: int) -> Served:
    right = dict.fromkeys(COLUMNS, best) | {"root": baseline, "federated": baseline}
    return Served(100, right)


def test_only_what_chance_does_not_explain_is_called_so():
    # Two standard errors of the difference of two shares near 0.9 of 100: 8.5.
    assert not beyond_chance(client(86, 94), "root")
    assert beyond_chance(client(85, 95), "root")
    line = line_of("rotation-2", 0, [client(90, 90), client(85, 95), client(95, 85)])
    assert (line["at least root"], line["worst against root"]) == (2, 10)
    assert line["beyond chance against root"] == 1
