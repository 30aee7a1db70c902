"""The field's methods in `scripts/peers`: each against a property of its paper."""

import csv
import json
from collections import Counter
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from families.planted import Job, run_config
from peers import apfl, ditto, feddrift, flux, ifca, pacfl, pfedme
from peers.contest import IFCA, NAMES, applies, compete, entry, in_process, through_the_apps
from peers.federation import Federation, Outcome, Vector, pulled
from peers.report import summary_lines

from cflower.data.examples import Examples
from cflower.seeding import generator
from tests.command import script

SMALL = {"model": "mlp", "num-server-rounds": 3, "local-epochs": 2}


def config(family: str = "rotation-2", seed: int = 22, **more: Any) -> dict[str, Any]:
    return run_config("digits", "", family, "auto", seed, SMALL | more)


@cache
def federation(family: str = "rotation-2", rounds: int = 3) -> Federation:
    return Federation(config(family, **{"num-server-rounds": rounds}))


def fedavg(here: Federation) -> Outcome:
    return Outcome(dict.fromkeys(here.clients, common_after(here, here.rounds)))


def common_after(here: Federation, rounds: int) -> Vector:
    """FedAvg's model."""
    everyone = dict.fromkeys(here.clients, 0)
    return here.train_groups(everyone, {0: here.initial}, range(1, rounds + 1))[0]


# ------------------------------------------------------------------ the harness


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
    bent = here.train("partition-0", here.initial, 1, change=pulled(0.5, goal))
    here.training = before
    np.testing.assert_allclose(bent - free, 0.5 * 0.1, atol=1e-5)


# ------------------------------------------------------------------ IFCA


def test_ifca_with_one_model_is_plain_fedavg():
    # Ghosh et al., section 4: with k = 1 nothing is left to choose.
    here = federation()
    plain = {c: here.train(c, here.initial, 1) for c in here.clients}
    here.rounds, before = 1, here.rounds
    outcome = ifca.run(here, k=1)
    here.rounds = before
    np.testing.assert_array_equal(outcome.models["partition-0"], here.mean(plain, weighted=False))


def test_ifca_begun_near_the_groups_optima_chooses_rightly():
    # Ghosh et al., Theorem 1: from models that are near enough the first choice is right already.
    here = federation()
    sides = [tuple(f"partition-{i}" for i in side) for side in (range(5), range(5, 10))]
    groups = {client: i for i, side in enumerate(sides) for client in side}
    near = here.train_groups(groups, dict.fromkeys((0, 1), here.initial), range(1, 4))
    chosen = {client: ifca.choice(here, client, [near[0], near[1]]) for client in here.clients}
    assert chosen == groups


def test_ifca_sends_every_model_to_everyone():
    _, one = in_process(lambda here: ifca.run(here, k=1), config())
    _, four = in_process(lambda here: ifca.run(here, k=4), config())
    assert four.down == 4 * one.down
    assert four.up == one.up


@pytest.mark.slow
def test_ifca_started_several_times_keeps_the_start_that_fits_the_training_examples_best():
    here = federation()
    fits = [ifca.total_loss(here, ifca.begin(here, 2, start)) for start in range(3)]
    assert len(set(fits)) == 3
    kept = ifca.run(here, 2, starts=3).models
    assert sum(here.measure(c, kept[c])["loss"] for c in kept) == pytest.approx(min(fits))
    given = {name: entry(name, "digits", 4).given for name in IFCA}
    assert given["ifca-restarts"] == "k = 4; best of 5 starts"


def test_there_is_no_ifca_with_no_model() -> None:
    assert not applies("ifca-minus-1", 1)
    assert entry("ifca-minus-1", "digits", 4).given == "k = 3"
    assert all(applies(name, 2) for name in IFCA)


# ------------------------------------------------------------------ PACFL


def images(seed: int, labels: np.ndarray, turned: bool = False) -> Examples:
    """Rows whose mean depends on the class, turned round for another group."""
    rng = generator(seed, "images")
    means = generator(0, "classes").uniform(size=(4, 30))
    rows = means[labels] + 0.05 * rng.normal(size=(len(labels), 30))
    rows = rows[:, ::-1] if turned else rows
    return Examples(np.ascontiguousarray(rows, np.float32), labels, tuple("abcd"))


def test_pacfl_is_blind_to_labels_and_sees_inputs():
    # Its distance is one of subspaces of the inputs: a client that names the same images
    # differently sends the same vectors.
    labels = np.tile(np.arange(4), 10)
    upright, turned = images(1, labels), images(2, labels, turned=True)
    renamed = Examples(upright.inputs, (upright.labels + 1) % 4, upright.class_names)
    sent = [pacfl.signature(e, 3) for e in (upright, renamed, turned)]
    assert sent[0].shape == (30, 3 * 4)
    distances = pacfl.angles(sent)
    assert distances[0, 1] < 0.1 < 5 < distances[0, 2]
    assert pacfl.clustered(distances, 5.0) == [1, 1, 2]


def test_pacfl_sends_pictures_of_the_data():
    # The first vector of a class is its mean image but for length and sign.
    labels = np.tile(np.arange(4), 10)
    examples = images(1, labels)
    first = pacfl.signature(examples, 3)[:, 0]
    mean = examples.inputs[labels == 0].mean(axis=0)
    assert abs(first @ mean) / np.linalg.norm(mean) > 0.99


def test_pacfl_separates_rotations_and_leaves_label_groups_together():
    turned, permuted = federation("rotation-2"), federation("label-permutation-4")
    outcomes = {name: pacfl.run(f, 12.0) for name, f in [("turned", turned), ("named", permuted)]}
    groups = {name: outcome.groups or {} for name, outcome in outcomes.items()}
    assert len({groups["turned"][f"partition-{i}"] for i in range(5)}) == 1
    assert len(set(groups["turned"].values())) == 2
    assert len(set(groups["named"].values())) == 1


# ------------------------------------------------------------------ Ditto


def test_ditto_without_pull_is_training_alone_and_its_common_model_is_fedavgs():
    # Li et al., section 3: λ = 0 is local training, λ to infinity the common model.
    here = federation()
    own = here.initial
    for server_round in (1, 2, 3):
        own = here.train("partition-3", own, server_round)
    np.testing.assert_array_equal(ditto.run(here, 0.0).models["partition-3"], own)


@pytest.mark.slow
def test_ditto_comes_the_nearer_to_the_common_model_the_stronger_the_pull():
    here = Federation(config("label-permutation-4", momentum=0.0))
    common = fedavg(here).models["partition-3"]
    gaps = [
        float(np.linalg.norm(ditto.run(here, strength).models["partition-3"] - common))
        for strength in (0.0, 1.0, 5.0)
    ]
    assert gaps[0] > gaps[1] > gaps[2]


def test_fine_tuning_sends_no_more_than_fedavg():
    _, plain = in_process(fedavg, config())
    _, tuned = in_process(lambda here: ditto.fine_tuned(here, 2), config())
    assert (tuned.down, tuned.up) == (plain.down, plain.up)


# ------------------------------------------------------------------ APFL and pFedMe


def test_apfl_with_all_of_the_own_model_is_training_alone_and_with_none_of_it_fedavg():
    # Deng et al., section 3: v̄ = α v + (1 - α) w.
    here = federation()
    own = here.initial
    for server_round in (1, 2, 3):
        own = here.train("partition-3", own, server_round)
    np.testing.assert_array_equal(apfl.run(here, 1.0).models["partition-3"], own)
    trained = here.train("partition-3", common_after(here, 2), 3)
    mixed = apfl.run(here, 1e-3).models["partition-3"]
    assert np.linalg.norm(mixed - trained) < 0.01 * np.linalg.norm(own - trained)


def test_pfedme_whose_copy_is_the_own_model_is_fedavg():
    # Dinh et al., Algorithm 1 with λ = 0 and a copy that goes all the way after every step.
    here = federation()
    trained = here.train("partition-3", common_after(here, 2), 3)
    outcome = pfedme.run(here, strength=0.0, rate=1.0, steps=1)
    np.testing.assert_allclose(outcome.models["partition-3"], trained, atol=1e-6)


def test_the_copy_of_pfedme_follows_after_every_k_steps():
    copy = pfedme.Copy(np.zeros(3, np.float32), strength=2.0, rate=0.5, steps=2)
    here, still, first = torch.ones(2), torch.zeros(2), slice(0, 2)
    pulls = [copy.pull(first, still, here).tolist() for _ in range(5)]
    assert [pull[0] for pull in pulls] == [2.0, 2.0, 1.0, 1.0, 0.5]
    assert copy.values.tolist() == [0.75, 0.75, 0.0]


# ------------------------------------------------------------------ FedDrift


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


def test_feddrift_weighs_merged_models_by_what_went_into_them():
    models = {"a": np.zeros(2, np.float32), "b": np.full(2, 4, np.float32)}
    shares = {"a": Counter({"x": 3}), "b": Counter({"y": 1})}
    fused, together = feddrift.fused(models, shares, {"a": "a", "b": "a"})
    np.testing.assert_array_equal(fused["a"], [1, 1])
    assert together == {"a": Counter({"x": 3, "y": 1})}


@pytest.mark.slow
def test_feddrift_starts_with_a_model_for_every_client_and_merges_them():
    here = federation("rotation-2", 8)
    one = set((feddrift.run(here, delta=1.0).groups or {}).values())
    none = set((feddrift.run(here, delta=-1e-9).groups or {}).values())
    assert len(one) == 1 < len(none)


# ------------------------------------------------------------------ FLUX


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


def test_flux_makes_noise_points_groups_of_one_and_marks_absent_classes():
    points = np.array([[0.0, 0], [0, 0.1], [0.1, 0], [5, 5], [5, 5.1], [-9, 9]])
    groups = flux.clustered(points)
    assert groups[5] not in groups[:5]
    described = flux.descriptor(np.ones((4, 16)), np.array([0, 0, 1, 1]), 2.0, 3)
    assert described[6 + 6 : 6 + 9].tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("trend", "now"),
    [
        ([0.2, 0.4], False),
        ([0.2, 0.4, 0.6], False),
        ([0.2, 0.4, 0.45], True),
        ([0.1 * i for i in range(1, 9)], True),
    ],
)
def test_flux_groups_once_accuracy_stops_growing_or_time_runs_out(trend, now):
    assert flux.ready(trend, 10) is now


# ------------------------------------------------------------------ the contest


def test_a_method_is_compared_with_cflower_on_its_own_federations_and_spreads_over_seeds():
    common = {"data": "digits", "exact": True, "worst": 0.5, "down": 0, "up": 0, "given": ""}
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
def test_a_method_without_groups_is_neither_exact_nor_inexact():
    job = SimpleNamespace(data="digits", family="rotation-2", seed=22, settings={}, config=config())
    alone = compete(SimpleNamespace(**vars(job), criterion="ditto"))  # type: ignore[arg-type]
    grouped = compete(SimpleNamespace(**vars(job), criterion="ifca"))  # type: ignore[arg-type]
    assert alone["exact"] is None is alone["found"]
    assert grouped["exact"] is (grouped["adjusted_rand_index"] == 1.0)
    assert (grouped["groups"], grouped["given"]) == (2, "k = 2")
    assert 0 <= grouped["worst"] <= grouped["accuracy"] <= 1


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
