"""Nothing is decided by an example that is reported: other labels there change figures only."""

import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

import cflower.client_app
from cflower import simulate
from cflower.clients import node
from cflower.config import RunConfig
from cflower.server_app import run

KEYS = {"shift": "label-permutation", "dataset-size": 600, "model": "linear"}
KEYS |= {"num-server-rounds": 9, "min-available-nodes": 6}
REPORTED = {"accuracy", "loss", "metrics", "clients", "seconds"}
"""Fields with figures of the examples that are reported, and the time."""


def trained(folder, monkeypatch, spoiled, **keys):
    """What a run decided, and what it reported, with wrong labels in one part of the examples."""
    with monkeypatch.context() as patch:
        patch.setattr(node, "data_of", spoiling(spoiled))
        config = RunConfig.read(KEYS | keys | {"output-dir": str(folder)}).as_keys()
        summary = simulate(
            cflower.client_app.app,
            6,
            server_app=lambda grid, context: run(grid, context, say=lambda text: None),
            run_config=config,
        )
    path = folder / summary["run_id"]
    lines = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    decided = {"rounds": [{k: v for k, v in line.items() if k not in REPORTED} for line in lines]}
    decided |= {key: summary[key] for key in ("clusters", "splits", "moves", "decided_by")}
    decided["served"] = [
        {key: client.get(key) for key in ("cluster", "best_cluster", "served_by")}
        for client in summary["clients"].values()
    ]
    files = [file for file in path.glob("*/*.safetensors") if file.parent.name != "checkpoints"]
    models = {f"{file.parent.name}/{file.name}": load_file(file) for file in files}
    return decided, models, summary["metrics"]


def spoiling(part):
    """`node.data_of` with every label of one part moved to the next class."""
    original = node.data_of

    def data_of(*arguments):
        data = original(*arguments)
        if not part:
            return data
        old = getattr(data, part)
        labels = (old.labels + 1) % old.num_classes
        return replace(data, **{part: replace(old, labels=labels)})

    return data_of


@pytest.mark.slow
@pytest.mark.parametrize("selection", ["leaf", "best"])
def test_examples_that_are_reported_decide_nothing(tmp_path, monkeypatch, selection):
    keys = {"selection": selection, "trial-rounds": 2}
    decided, models, figures = trained(tmp_path / "a", monkeypatch, "", **keys)
    again, same_models, wrong = trained(tmp_path / "b", monkeypatch, "report", **keys)
    assert decided == again
    assert decided["decided_by"] == "other"
    assert models.keys() == same_models.keys()
    for name, arrays in models.items():
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, same_models[name][key])
    assert wrong["accuracy"] < figures["accuracy"] / 2
    # Not because nothing was decided by examples: those that decide do change it.
    other, _, _ = trained(tmp_path / "c", monkeypatch, "decide", **keys)
    assert other != decided
