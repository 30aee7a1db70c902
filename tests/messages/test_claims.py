"""What a client tells of itself is read by one checker."""

import pytest
from flwr.app import ConfigRecord, MetricRecord, RecordDict

from cflower.messages.claims import MOST_ITEMS, checked, facts_in, line, listed

USUAL = {
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
    "site-temperature": 20.5,
}


def test_what_is_usual_passes_as_it_is():
    assert checked(USUAL) == (USUAL, ())
    assert checked({"client-id": 7, "group": -1}) == ({"client-id": 7, "group": -1}, ())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("client-id", ""),
        ("client-id", "__metadata__"),
        ("client-id", "a\nINFO: b"),
        ("client-id", "\x1b]0;title\x07"),
        ("client-id", "a\u202eb"),
        ("client-id", b"a"),
        ("client-id", "a" * 5_000_000),
        ("client-id", True),
        ("problem", 5),
        ("num-partitions", "many"),
        ("num-partitions", [1, 2]),
        ("num-partitions", 0),
        ("num-partitions", 10**9),
        ("num-examples", "x"),
        ("input-shape", 5),
        ("input-shape", [1.5]),
        ("input-shape", [-1, 8]),
        ("class-names", 5),
        ("class-names", [1, 2, 3]),
        ("class-names", ["a" * 1000]),
        ("class-names", ["a"] * (MOST_ITEMS + 1)),
        ("evaluates-way", 1),
        ("label-counts", 5),
        ("label-counts", [1, 2, 3]),
        ("sample-images", b"junk"),
        ("sample-images", "junk"),
        ("sample-shape", [0, 0, 0]),
        ("sample-shape", [2, 2]),
        ("sample-labels", [0, 2]),
        ("mean-examples", b"junk"),
        ("mean-shape", [1, 5]),
        ("mean-shape", [4]),
        ("permutation", [1]),
        ("group", [1, 2]),
        ("group", b"x"),
        ("group", 0.5),
        ("best-cluster", 1),
        ("own\x1bfact", 1),
        ("own-fact", b"x" * (MOST_ITEMS + 1)),
    ],
)
def test_what_is_wrong_is_left_out_and_said_in_a_short_line(key, value):
    told, (problem,) = checked({**USUAL, key: value})
    assert key not in told
    assert told["num-partitions" if key == "client-id" else "client-id"]
    assert (key in problem or not key.isprintable()) and problem.isprintable()
    assert len(problem) < 300


def test_too_many_facts_are_none():
    told, (problem,) = checked({f"fact-{i}": i for i in range(51)})
    assert told == {} and "51 facts, more than 50" in problem


def test_facts_are_in_their_own_record_only():
    record = ConfigRecord({"client-id": "a", "group": [1, 2]})
    assert facts_in(RecordDict({"client": record}), "client").told == {"client-id": "a"}
    assert facts_in(RecordDict({"client": MetricRecord({"group": 1})}), "client") == ({}, ())
    assert facts_in(RecordDict(), "client") == ({}, ())


def test_texts_are_made_fit_to_be_shown():
    assert checked({"problem": "no\x1b[31m data\nINFO: all well\x07"}).told == {
        "problem": "no [31m data INFO: all well "
    }
    assert checked({"class-names": ["a\xa0b", "\x07"]}).told == {"class-names": ["a\xa0b", " "]}
    assert len(line("x" * 10**6)) < 550
    assert line("x" * 500) == "x" * 500
    assert listed(["a\n", "b", "c"], 2) == "a , b and 1 more"
