"""The field's methods in `scripts/peers`: each against a property of its paper."""

import csv
import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from families.planted import Job, run_config
from peers import ditto, feddrift, flux, ifca, pacfl
from peers.contest import NAMES, in_process, through_the_apps
from peers.federation import Federation, Outcome
from peers.report import summary_lines

from cflower.seeding import generator
from tests.command import script

SMALL = {"model": "mlp", "num-server-rounds": 3, "local-epochs": 2}


def config(family: str = "rotation-2", seed: int = 22, **more: Any) -> dict[str, Any]:
    return run_config("digits", "", family, "auto", seed, SMALL | more)


@cache
def federation(family: str = "rotation-2", rounds: int = 3) -> Federation:
    return Federation(config(family, **{"num-server-rounds": rounds}))


def fedavg(here: Federation) -> Outcome:
    everyone = dict.fromkeys(here.clients, 0)
    models = here.train_groups(everyone, {0: here.initial}, range(1, here.rounds + 1))
    return Outcome(dict.fromkeys(everyone, models[0]))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["half-per-round", "uneven-rotation"])
def test_fedavg_here_is_fedavg_through_cflowers_own_apps(family):
    mine, cost = in_process(fedavg, config(family))
    theirs, sent = through_the_apps(Job("digits", family, "federated", 22, config(family)))
    assert {n: c["accuracy"] for n, c in mine.items()} == {
        n: c["accuracy"] for n, c in theirs.items()
    }
    assert (cost.down, cost.up) == (sent.down, sent.up) != (0, 0)


def test_a_pull_of_the_gradient_is_that_of_the_square_of_the_distance():
    # One step from θ with a pull λ towards w ends λ η (w - θ) further than a step without.
    here = federation()
    here.training, before = (
        replace(here.training, local_epochs=1, batch_size=1_000, momentum=0.0),
        here.training,
    )
    goal = here.initial + 1
    free = here.train("partition-0", here.initial, 1)
    pulled = here.train("partition-0", here.initial, 1, pull=0.5, towards=goal)
    here.training = before
    np.testing.assert_allclose(pulled - free, 0.5 * 0.1, atol=1e-5)


def test_ifca_with_one_model_is_plain_fedavg():
    # Ghosh et al., section 4: with k = 1 nothing is left to choose.
    here = federation()
    plain = {c: here.train(c, here.initial, 1) for c in here.clients}
    here.rounds, before = 1, here.rounds
    outcome = ifca.run(here, k=1)
    here.rounds = before
    np.testing.assert_array_equal(outcome.models["partition-0"], here.mean(plain, weighted=False))


def test_ifca_sends_every_model_to_everyone():
    _, one = in_process(lambda here: ifca.run(here, k=1), config())
    _, four = in_process(lambda here: ifca.run(here, k=4), config())
    assert four.down == 4 * one.down
    assert four.up == one.up


def test_pacfl_separates_rotations_and_leaves_label_groups_together():
    turned, permuted = federation("rotation-2"), federation("label-permutation-4")
    outcomes = {name: pacfl.run(f, 12.0) for name, f in [("turned", turned), ("named", permuted)]}
    groups = {name: outcome.groups or {} for name, outcome in outcomes.items()}
    assert len({groups["turned"][f"partition-{i}"] for i in range(5)}) == 1
    assert len(set(groups["turned"].values())) == 2
    assert len(set(groups["named"].values())) == 1


def test_ditto_without_pull_is_training_alone_and_its_common_model_is_fedavgs():
    # Li et al., section 3: λ = 0 is local training, λ to infinity the common model.
    here = federation()
    own = here.initial
    for server_round in (1, 2, 3):
        own = here.train("partition-3", own, server_round)
    np.testing.assert_array_equal(ditto.run(here, 0.0).models["partition-3"], own)


def test_feddrift_lets_a_client_leave_whose_best_model_lost_more_than_delta():
    accuracy = {"m": {"a": 0.9, "b": 0.5}, "n": {"a": 0.2, "b": 0.6}}
    best, left, now = feddrift.chosen(accuracy, {"a": 0.92, "b": 0.9}, delta=0.1)
    assert best == {"a": "m", "b": "n"}
    assert left == ["b"]
    assert now == {"a": 0.9, "b": 0.6}


def test_feddrift_merges_what_is_within_delta_of_everyone_and_not_a_chain():
    # Complete linkage: b is near a and c, which are too far from each other to be one.
    gaps = np.array([[0, 0.08, 0.2], [0.08, 0, 0.09], [0.2, 0.09, 0]])
    clients = dict(enumerate("abc"))
    accuracy = {clients[i]: {clients[j]: 1 - gaps[i, j] for j in range(3)} for i in range(3)}
    shares = {name: {name: 1} for name in "abc"}
    merged = feddrift.merging(accuracy, shares, 0.1, dict.fromkeys("abc", 10))
    assert merged == {"a": "a", "b": "a", "c": "c"}


@pytest.mark.slow
def test_feddrift_starts_with_a_model_for_every_client_and_merges_them():
    here = federation("rotation-2", 8)
    one = set((feddrift.run(here, delta=1.0).groups or {}).values())
    none = set((feddrift.run(here, delta=-1e-9).groups or {}).values())
    assert len(one) == 1 < len(none)


def test_flux_separates_clients_with_other_inputs_or_other_labels_by_their_descriptors():
    rng = generator(0, "latent")
    labels = np.tile(np.arange(3), 40)
    means = rng.uniform(size=(3, 16))

    def described(mapping: list[int], shift: float) -> np.ndarray:
        latent = means[labels] + shift + 0.02 * rng.normal(size=(len(labels), 16))
        return flux.descriptor(latent, np.array(mapping)[labels], 2.0, 3)

    kinds = [([0, 1, 2], 0.0), ([0, 1, 2], 0.5), ([1, 2, 0], 0.0)]
    descriptions = np.stack([described(*kind) for kind in kinds for _ in range(4)])
    assert descriptions.shape == (12, 2 * 3 * (1 + 3))
    groups = flux.clustered(flux.scaled(descriptions, 3))
    # The knee parts the kinds; with four of each it may also leave one out, but joins no two.
    kinds_of = [set(groups[4 * k : 4 * k + 4]) for k in range(3)]
    assert not kinds_of[0] & kinds_of[1]
    assert not kinds_of[0] & kinds_of[2]
    assert not kinds_of[1] & kinds_of[2]


def test_a_method_is_compared_with_cflower_on_its_own_federations_and_spreads_over_seeds():
    common = {"data": "digits", "exact": True, "worst": 0.5, "down": 0, "up": 0, "told": ""}
    common |= {"server_seconds": 0.0, "client_seconds": 0.0}
    figures = {
        "cflower": {("rotation-2", 0): 0.9, ("rotation-2", 1): 0.8, ("rotation-4", 1): 0.3},
        "ifca": {("rotation-2", 0): 0.91, ("rotation-2", 1): 0.77, ("rotation-4", 1): 0.1 * 3},
        "pacfl": {("rotation-2", 2): 0.9},
    }
    records = [
        {**common, "method": method, "family": family, "seed": seed, "accuracy": accuracy}
        for method, runs in figures.items()
        for (family, seed), accuracy in runs.items()
    ]
    found = {line["method"]: line for line in summary_lines(records)}
    assert found["ifca"]["accuracy"] == "66.0 ± 26.5"
    assert found["ifca"]["less cflower's"] == "-0.7 ± 1.8"
    assert found["ifca"]["better, worse"] == "1, 1"
    assert found["pacfl"]["accuracy"] == "90.0"
    assert found["pacfl"]["less cflower's"] == "-"  # cflower has not run there
    assert found["cflower"]["less cflower's"] == "-"


@pytest.mark.slow
def test_the_command_measures_all_methods_and_resumes(tmp_path):
    args = ["--families", "rotation-2,no-groups-iid", "--seeds", "0", "--rounds", "4"]
    args += ["--set", "model='mlp' dataset-size=300 local-epochs=1", "--out", tmp_path]
    count = 2 * len(NAMES) - 1  # no IFCA with k = 0
    assert f"{count} runs, 0 there already, {count} to do." in script("run.py", "peers", *args)
    assert f"{count} runs, {count} there already, 0 to do." in script("run.py", "peers", *args)
    with (tmp_path / "peers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == count
    assert {row["method"] for row in rows} == set(NAMES)
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
    assert "| digits | ifca |" in (tmp_path / "peers.md").read_text()
    record = json.loads((tmp_path / "digits--rotation-2--ifca--0.json").read_text())
    assert record["config"]["model"] == "mlp"
