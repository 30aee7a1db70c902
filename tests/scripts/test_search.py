"""The adversary that searches: every program can be drawn, and its runs reach their end."""

import json

import numpy as np
import pytest
from adversaries.attacks import Moment, Turn
from adversaries.programs import PARTS, Program, changed, drawn, mixed, parts
from adversaries.search import cost, following, having, points, read, search
from typer import BadParameter

from cflower.messages.layout import Layout

MILD = Program("mlp", "", 1.0, "fedavg+fedavg", 1, "last group", "always", "all", "nothing", "own",
               0.5, 1.0, "honest", "own", "", "")  # fmt: skip
HOSTILE = MILD._replace(direction="mean", length=-2.0, claim=3.0)


def test_programs_differ_in_one_part_from_the_one_that_they_came_from():
    rng = np.random.default_rng(0)
    for _ in range(200):
        program = drawn(rng)
        assert all(getattr(program, name) in values for name, values in PARTS.items())
        after = changed(program, rng)
        assert sum(a != b for a, b in zip(program, after, strict=True)) == 1
        assert all(
            part in pair
            for part, *pair in zip(mixed(program, after, rng), program, after, strict=True)
        )
    assert tuple(PARTS) == Program._fields


def test_lengths_are_relative_to_the_others():
    others = [np.array([0.0, 3.0, 4.0]), np.array([0.0, 6.0, 8.0]), np.array([0.0, 9.0, 12.0])]
    layout = Layout((), np.dtype("f4"), 3)
    turn = Turn(np.ones(3), others, others, Moment(1, 20, "0", 1, 19), -np.ones(3), layout)
    np.testing.assert_allclose(HOSTILE.sent(turn), [0, -12, -16])
    np.testing.assert_allclose(HOSTILE._replace(arrays="quiet", rest="own").sent(turn)[1:], [1, 1])


def test_a_search_measures_the_worst_again_and_keeps_what_it_tried(tmp_path):
    rng = np.random.default_rng(0)
    tried = {drawn(rng): [(float(i), 0.0)] for i in range(12)}
    chosen = [following(tried, 3, rng, {}) for _ in range(100)]
    worst = max(tried, key=lambda program: points(tried[program]))
    assert {program for program in chosen if program in tried} == {worst}
    assert len(set(chosen)) > 20
    assert read(tmp_path / "search.json") == {}
    fixed = parts("hostile=1,fraction=1.0")
    assert all(
        program == program._replace(**fixed)
        for program in (following(having(tried, fixed), 3, rng, fixed) for _ in range(50))
    )
    with pytest.raises(BadParameter, match="hostile=3': choose from 1, 2, 4"):
        parts("hostile=3")


BACK = HOSTILE._replace(model="small_models:batchnorm", hostile=4)
FIRST = BACK._replace(
    fraction=0.1, when="first", arrays="trained", direction="own", length=1e6, claim=1.0
)
QUIET = Program("small_models:embedding", "10,10", 1.0, "fedavg+fedavg", 1, "all groups", "always",
                "quiet", "nothing", "constant", 3.0, 1e9, "praise", "own", "", "")  # fmt: skip
LATE = QUIET._replace(
    model="small_models:frozen_batchnorm", when="late", arrays="first", length=1e6, vote="opposite"
)

AGAINST = HOSTILE._replace(groups="10,10", hostile=4, when="split")
SPREAD = AGAINST._replace(model="small_models:embedding", where="all groups", when="always")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "seed", "most"),
    [
        (AGAINST, 0, 5.0),
        (AGAINST._replace(rule="fedadam+fedavg"), 1, 5.0),
        (SPREAD, 1, 5.0),
        (BACK, 1, 5.0),
        (FIRST, 0, 5.0),
        (QUIET, 0, 2.0),
        (LATE, 0, 2.0),
    ],
    ids=[
        "four of ten in a cluster",
        "the same, which prevent the judgement of its split",
        "two of ten in each group",
        "split off and back",
        "a long update at first",
        "inputs that others hardly use",
        "a long update at the end",
    ],
)
def test_the_worst_programs_that_are_mended_stay_so(program, seed, most):
    assert max(cost(program, seed)) < most


@pytest.mark.slow
def test_a_search_writes_what_it_tried_and_a_mild_program_costs_little(tmp_path):
    search(0.0, [0], tmp_path, {})
    (found,) = json.loads((tmp_path / "search.json").read_text())["programs"]
    assert set(found) == {*PARTS, "costs"}
    assert [*read(tmp_path / "search.json").values()] == [[tuple(found["costs"][0])]]
    assert cost(MILD, seed=0)[0] < 2
