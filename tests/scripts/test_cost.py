import pandas as pd
import pytest
from families.cost import CLIENTS, TOGETHER, WAYS, config_of, row_of, run_one
from records import Job


def test_conventional_federated_learning_trains_once_a_round_and_evaluates_once():
    config = config_of("digits", 3, WAYS["federated"], 0)
    record = run_one(Job({}, config))
    assert (record["trainings"], record["evaluations"]) == (3 * CLIENTS, CLIENTS)
    assert record["exchanges"] == 4
    size = record["up"] // record["trainings"]
    assert record["up"] == 3 * CLIENTS * size and record["down"] == 4 * CLIENTS * size
    assert record["steps"] > 3 * 3 * CLIENTS


def test_a_row_is_relative_to_conventional_federated_learning():
    ways = pd.MultiIndex.from_tuples([("digits", "no groups", 3, way) for way in WAYS])
    means = pd.DataFrame({key: [40.0, 60.0, 80.0] for key in ("accuracy", *TOGETHER)}, index=ways)
    row = row_of(ways[1], means)
    assert (row["trainings"], row["x trainings"], row["x bytes"]) == (3, 1.5, 1.5)


@pytest.mark.slow
def test_the_personal_step_is_counted():
    figures = [run_one(Job({}, config_of("digits", 3, WAYS[way], 0))) for way in WAYS]
    bytes_up = [record["up"] for record in figures]
    assert bytes_up[0] <= bytes_up[1] <= bytes_up[2]
