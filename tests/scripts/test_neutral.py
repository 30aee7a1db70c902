import numpy as np
import pytest
from families.neutral import (
    CLIENTS,
    FAMILIES,
    FORCED,
    HAPPENED,
    WAYS,
    Forced,
    blurred,
    config_of,
    darker,
    group_of,
    line,
    noisy,
    reduced,
    run_one,
    written,
)
from records import Job

from cflower.algorithm.criteria import Evidence, Outcome

IMAGES = np.zeros((3, 4, 4), np.uint8)
IMAGES[:, 1, 2] = 90


def evidence(server_round: int, clients: tuple[str, ...]) -> Evidence:
    """Of these clients, whose updates do not matter."""
    size = len(clients)
    return Evidence("0", server_round, clients, clients, (), np.ones(size), np.ones(size) / size,
                    0.5, np.full(size, server_round))  # fmt: skip


def test_a_split_is_forced_in_its_round_and_in_no_other():
    clients = ("client-0", "client-1", "client-2")
    criterion = Forced(truth={name: i % 2 for i, name in enumerate(clients)})
    decision, _ = criterion.decide(evidence(FORCED, clients), {})
    assert decision.outcome is Outcome.SPLIT
    assert decision.sides == (("client-0", "client-2"), ("client-1",))
    for server_round, some in ((FORCED - 1, clients), (FORCED + 1, clients), (FORCED, clients[:1])):
        assert criterion.decide(evidence(server_round, some), {})[0].outcome is Outcome.NEVER


def test_only_the_images_of_the_other_groups_are_changed():
    rng = np.random.default_rng(0)
    for change in (noisy, blurred, darker):
        np.testing.assert_array_equal(change(IMAGES, 0, rng), IMAGES)
        assert not np.array_equal(change(IMAGES, 1, rng), IMAGES)
    assert blurred(IMAGES, 1, rng)[0, 0, 1] == 10
    assert darker(IMAGES, 2, rng).max() == pytest.approx(9)


def test_every_family_has_the_same_number_of_examples_a_client(tmp_path):
    assert reduced("digits", "")[0].max() == 255
    for family, (groups, _) in FAMILIES.items():
        written("digits", "", family, 0, tmp_path)
        with np.load(tmp_path / "train.npz") as made:
            counts = np.bincount(made["client"])
            assert made["x"].dtype == np.uint8
        assert counts.tolist() == [89] * CLIENTS
        assert {group_of(family, i) for i in range(CLIENTS)} == set(range(groups))


def test_a_run_is_compared_with_conventional_federated_learning_client_by_client():
    run = {
        **{"data": "digits", "family": "blur", "way": "forced", "seed": 0, "accuracy": 0.5},
        "clusters": 2,
        "accuracies": [0.4, 0.6] * 10,
        "federated": [0.5, 0.6] * 10,
        "unsplit": float("nan"),
        "events": [(4, "0", "split"), (8, "0", "split confirmed")],
    }
    row = line(run)
    assert row["points"] == pytest.approx(-5) and row["error"] == pytest.approx(1.147, abs=1e-3)
    assert row["below"] and row["split at the end"] and np.isnan(row["by splits"])
    assert [row[name] for name in HAPPENED.values()] == ["4", "8", ""]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_run_says_what_happened_to_its_splits(tmp_path, way):
    made = written("digits", "", "half-epochs", 0, tmp_path)
    config = config_of(made, 6, 0, WAYS[way])
    record = run_one(Job({"family": "half-epochs", "way": way}, config))
    assert len(record["accuracies"]) == CLIENTS and record["accuracy"] > 0.5
    forced = [list(e) for e in record["events"] if list(e)[:2] == [FORCED, "0"]]
    if way == "forced":  # its clients may refuse it
        assert [event[2] for event in forced][:1] in (["split"], ["split refused"])
