"""Macro F1, by scikit-learn's."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from cflower.learning.classes import macro_f1
from tests.command import cflower

CLASSES = st.integers(0, 4)


@given(st.lists(st.tuples(CLASSES, CLASSES), min_size=1))
def test_macro_f1_is_scikit_learns_over_the_classes_among_the_labels(pairs):
    predicted, labels = np.array(pairs).T
    held = sorted(set(labels))
    expected = f1_score(labels, predicted, labels=held, average="macro", zero_division=0)
    assert macro_f1(predicted, labels) == pytest.approx(expected)


def test_a_rare_class_that_is_never_found_shows_in_f1_only(tmp_path):
    """One row of ten is of the second class, and nothing in the inputs shows which."""
    rng = np.random.default_rng(0)
    for client in range(4):
        rows = np.column_stack([rng.normal(size=(200, 4)).round(3), np.arange(200) % 10 == 0])
        text = "\n".join(",".join(map(str, row)) for row in rows)
        (tmp_path / f"c{client}.csv").write_text(f"a,b,c,d,label\n{text}\n")
    config = (
        f"dataset='{tmp_path}' partitioner='natural-id' natural-id-column='file' model='linear' "
        "num-server-rounds=3 shift='none' min-available-nodes=4 metric='{}'"
    )
    for metric in ("accuracy", "f1"):
        runs = tmp_path / metric
        done = cflower("simulate", "--clients", 4, "--out", runs, "-c", config.format(metric))
        assert done.returncode == 0, done.stderr
        (run,) = runs.iterdir()
        summary = json.loads((run / "summary.json").read_text())
        assert summary["metric"] == {"name": metric, "higher_is_better": True}
        assert summary["metrics"]["accuracy"] == pytest.approx(0.9, abs=0.02)
        assert summary["metrics"]["f1"] == pytest.approx(0.9 / 1.9, abs=0.02)
    together = "f1 of all clients' held-out examples together:\n- this run: 47"
    assert together in cflower("show", run).stdout
    shown = cflower("show", "--runs", tmp_path / "accuracy", "--metric", "f1")
    assert together in shown.stdout, shown.stderr
