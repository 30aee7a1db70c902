import pandas as pd
import pytest
from families.cost import TOGETHER, WAYS, row_of, run_one
from families.planted import run_of
from records import Job

CLIENTS = 4


def test_conventional_federated_learning_trains_once_a_round_and_evaluates_once():
    config = run_of("digits", CLIENTS, 3, 0, WAYS["federated"])
    record = run_one(Job({"way": "federated"}, config))
    assert (record["trainings"], record["evaluations"]) == (3 * CLIENTS, CLIENTS)
    assert record["exchanges"] == 4
    size = record["up"] // record["trainings"]
    assert record["up"] == 3 * CLIENTS * size and record["down"] == 4 * CLIENTS * size
    assert record["steps"] > 3 * 3 * CLIENTS


def test_a_row_is_relative_to_conventional_federated_learning():
    kind = ("digits", "no groups", 20, 3)
    ways = pd.MultiIndex.from_tuples([(*kind, way) for way in WAYS])
    means = pd.DataFrame(
        {key: [40.0, 60.0, 80.0, 20.0, 50.0] for key in ("accuracy", *TOGETHER)}, index=ways
    )
    row = row_of(ways[1], means)
    assert (row["trainings"], row["x trainings"], row["x bytes"]) == (3, 1.5, 1.5)
    assert row_of(ways[-1], means)["x trainings"] == 2.5


@pytest.mark.slow
def test_the_personal_step_is_counted():
    def bytes_up(way: str) -> int:
        config = run_of("digits", CLIENTS, 3, 0, WAYS[way])
        return run_one(Job({"way": way}, config))["up"]

    assert bytes_up("federated") <= bytes_up("plain") <= bytes_up("default")
    assert bytes_up("own-fedavg") <= bytes_up("own")
