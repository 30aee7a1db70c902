"""The adversary that searches: every program can be drawn, and its runs reach their end."""

import json

import numpy as np
import pytest
from search import PARTS, WHEN, Program, changed, cost, drawn, search

MILD = Program("mlp", "", 1.0, "fedavg+fedavg", 1, "always", "all", "own", 0.5, 1.0)


def test_programs_differ_in_one_part_from_the_one_that_they_came_from():
    rng = np.random.default_rng(0)
    for _ in range(200):
        program = drawn(rng)
        assert all(getattr(program, name) in values for name, values in PARTS.items())
        after = changed(program, rng)
        assert sum(a != b for a, b in zip(program, after, strict=True)) == 1
    assert set(WHEN) == set(PARTS["when"]) and tuple(PARTS) == Program._fields


@pytest.mark.slow
def test_a_search_writes_what_it_tried_and_a_mild_program_costs_little(tmp_path):
    search(budget=0.0, seed=0, out=tmp_path)
    (found,) = json.loads((tmp_path / "search.json").read_text())
    assert set(found) == {*PARTS, "seed", "points"}
    assert cost(MILD, seed=0) < 2
