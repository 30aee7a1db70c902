"""One checker reads all that clients report about themselves."""

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from cflower.messages.claims import MOST_ITEMS, PREVIEW, checked, facts_in
from cflower.ordering import line, listed, without

VALID = {
    "client-id": "site-a",
    "num-partitions": 3,
    "num-examples": 20,
    "input-shape": [1, 8, 8],
    "class-names": ["cat", "dog"],
    "evaluates-way": True,
    "label-counts": [2, 1],
    "sample-images": b"\x01" * 8,
    "sample-shape": [2, 2, 1],
    "sample-labels": [0, 1],
    "mean-examples": b"\0" * 16,
    "mean-shape": [1, 4],
    "permutation": "ab12",
    "group": "north",
    "best-cluster": "0.1",
}


def test_valid_facts_pass_unchanged_and_others_are_ignored():
    assert checked({**VALID, "own\x1bfact": 1}) == (VALID, ())
    assert checked({"client-id": 7, "group": -1}) == ({"client-id": 7, "group": -1}, ())


INVALID = {
    "client-id": ["", "__metadata__", "a\nINFO: b", "\x1b]0;title\x07", "a\u202eb", b"a", True],
    "problem": [5],
    "num-partitions": ["many", [1, 2], 0, 10**9],
    "num-examples": ["x", "a" * 5_000_000],
    "input-shape": [5, [1.5], [-1, 8], [0]],
    "class-names": [5, [1, 2, 3], ["a" * 1000], ["a"] * (MOST_ITEMS + 1)],
    "evaluates-way": [1],
    "label-counts": [5, [1, 2, 3]],
    "sample-images": [b"junk", "junk", b""],
    "sample-shape": [[0, 0, 0], [0, 0, 1], [2, 1, 2], [2, 2]],
    "sample-labels": [[0, 2], []],
    "mean-examples": [b"junk", b""],
    "mean-shape": [[1, 5], [4]],
    "permutation": [[1], "a" * 201],
    "group": [[1, 2], b"x", 0.5],
    "best-cluster": [1],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in INVALID.items() for value in values]
)
def test_invalid_facts_are_left_out_with_a_short_reason(key, value):
    facts, (problem,) = checked({**VALID, key: value})
    assert key not in facts
    assert facts["num-partitions" if key == "client-id" else "client-id"]
    assert problem.isprintable() and len(problem) < 300
    assert key.split("-")[0] in problem


@pytest.mark.parametrize("key", PREVIEW)
def test_a_preview_of_which_a_part_is_missing_is_left_out(key):
    facts, problems = checked(without(VALID, [key]))
    alone = key in ("sample-images", "mean-examples")  # the other examples need none of it
    assert bool(problems) is not alone
    assert all(key in problem for problem in problems)
    assert alone or not facts.keys() & {*PREVIEW}


def test_facts_come_from_their_own_record_only():
    record = ConfigRecord({"client-id": "a", "group": [1, 2]})
    assert facts_in(RecordDict({"client": record}), "client").facts == {"client-id": "a"}
    assert facts_in(RecordDict({"client": MetricRecord({"group": 1})}), "client") == ({}, ())
    assert facts_in(RecordDict(), "client") == ({}, ())


def test_texts_become_printable():
    facts = {"problem": "no\x1b[31m data\nINFO: all well\x07", "class-names": ["a\xa0b", "\x07"]}
    printable = {"problem": "no [31m data INFO: all well ", "class-names": ["a\xa0b", " "]}
    assert checked(facts).facts == printable
    assert len(line("x" * 10**6)) < 550
    assert line("x" * 500) == "x" * 500
    assert listed(["a\n", "b", "c"], 2) == "a , b and 1 more"
