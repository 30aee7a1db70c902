import csv
import json
from pathlib import Path
from typing import Any

import pytest
from families.audit import job_of
from families.generated import EVERY as GENERATED
from families.planted import CRITERIA, FAMILIES, judge, run_config, truth_of
from records import Job, is_done

from tests.command import script


def battery(out: Path, *more: str) -> str:
    """The output of the script."""
    settings = "dataset-size=200 local-epochs=1 round-share=0.8 num-server-rounds=2"
    args = ["--families", "no-groups-iid,rotation-2", "--seeds", "0"]
    args += ["--set", settings, "--workers", "1", "--out", out, *more]
    return script("run.py", "battery", *args)


@pytest.mark.slow
def test_it_measures_and_resumes(tmp_path):
    assert "2 runs, 0 there already, 2 to do." in battery(tmp_path)
    records = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*--*.json")}
    assert len(records) == 2
    again = battery(tmp_path)
    assert "2 runs, 2 there already, 0 to do." in again
    assert records == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*--*.json")}
    with (tmp_path / "battery.csv").open() as file:
        rows = [(row["family"], row["seed"]) for row in csv.DictReader(file)]
    assert rows == [("no-groups-iid", "0"), ("rotation-2", "0")]
    assert all(f"| {family}" in again for family, _ in rows)
    assert (tmp_path / "battery.png").read_bytes().startswith(b"\x89PNG")


def judged(family: str, *sides: str) -> dict[str, Any]:
    """The figures of a run whose one split made these sides, such as ``"0-4"``."""
    config = run_config("digits", "", family, "norms", 0, {})
    members = {}
    for i, side in enumerate(sides):
        first, _, last = side.partition("-")
        members[f"0.{i}"] = [f"partition-{n}" for n in range(int(first), int(last or first) + 1)]
    clients = {
        name: {"cluster": cluster, "num_examples": 1, "accuracy": 1.0 if cluster == "0.0" else 0.5}
        for cluster, names in members.items()
        for name in names
    }
    splits = [{"round": 7, "children": list(members)}] if len(members) > 1 else []
    tree = {"clusters": {cluster: {"edge_clients": names} for cluster, names in members.items()}}
    return judge({"clients": clients, "clusters": members, "splits": splits}, tree, config)


@pytest.mark.parametrize(
    ("family", "sides", "exact", "false_splits"),
    [
        ("rotation-2", ["0-4", "5-9"], True, 0),
        ("rotation-2", ["0-3", "4-9"], False, 1),
        ("rotation-2", ["0-9"], False, 0),
        ("rotation-4", ["0-9", "10-19"], False, 0),
        ("no-groups-iid", ["0-9"], True, 0),
        ("no-groups-iid", ["0", "1-9"], False, 1),
        ("adversaries", ["0-16", "17-19"], True, 0),
        ("adversaries", ["0-16", "17", "18-19"], True, 0),
        ("adversaries", ["0-17", "18-19"], False, 0),
        ("adversaries", ["0-15", "16-19"], False, 1),
        ("adversaries", ["0-19"], False, 0),
    ],
)
def test_a_run_is_exact_if_its_clusters_are_the_groups(family, sides, exact, false_splits):
    figures = judged(family, *sides)
    assert figures["exact"] is exact
    assert figures["false_splits"] == false_splits


def test_adversaries_accuracy_is_that_of_honest_clients():
    assert judged("adversaries", "0-16", "17-19")["accuracy"] == 1.0


def test_every_family_and_criterion_is_a_run_config():
    for family, spec in FAMILIES.items():
        for criterion in CRITERIA:
            for data in ("digits", "mnist"):
                config = run_config(data, "", family, criterion, 0, {})
                assert len(truth_of(config)) == spec.clients


def test_a_record_of_another_config_is_not_the_run_asked_for(tmp_path):
    def job(**more: Any) -> Job:
        return Job({"seed": 0}, run_config("digits", "", "rotation-2", "norms", 0, more))

    assert not is_done(job(), tmp_path)
    (tmp_path / f"{job().name}.json").write_text(json.dumps({"config": job().settings}))
    assert is_done(job(), tmp_path)
    assert not is_done(job(momentum=0.5), tmp_path)


def test_every_family_of_the_audit_has_records_of_its_own():
    names = {job_of(family, 0).name for family in GENERATED}
    assert len(names) == len(GENERATED)
    assert not any(set("/;, ") & set(name) for name in names)
