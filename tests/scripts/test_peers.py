"""The field's methods in `scripts/peers`: each against a property of its paper."""

import csv
import json
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from command import write_record
from families.planted import run_config
from peers import (
    apfl,
    clove,
    feddrift,
    feroma,
    flux,
    ifca,
    ocfl,
    of_fluke,
    own,
    pacfl,
    pfedme,
    plain,
    srfca,
    stocfl,
)
from peers.contest import LONGER, NAMES, PEERS, TUNED, entry, in_process, rounds_as_long
from peers.federation import Federation, Outcome, Vector, pulled
from peers.report import (
    accuracy_lines,
    client_lines,
    client_rows,
    family_lines,
    served_worse,
    summary_lines,
)

from cflower.errors import ConfigError
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


@pytest.mark.slow
@pytest.mark.parametrize("family", ["half-per-round", "uneven-rotation"])
def test_fedavg_here_is_fedavg_through_cflowers_own_apps(family):
    mine, cost = in_process(fedavg, config(family))
    theirs, sent = own.run("federated", config(family))
    mine, theirs = ({n: c["accuracy"] for n, c in one["clients"].items()} for one in (mine, theirs))
    assert mine == theirs
    assert (cost.down, cost.up) == (sent.down, sent.up) != (0, 0)


def test_a_pull_of_the_gradient_is_that_of_the_square_of_the_distance():
    # One step from θ with a pull λ towards w ends λ η (w - θ) further than a step without.
    here = Federation(config())
    here.training = replace(here.training, local_epochs=1, batch_size=1_000, momentum=0.0)
    goal = here.initial + 1
    free = here.train("partition-0", here.initial, 1)
    bent = here.train("partition-0", here.initial, 1, change=pulled(0.5, goal))
    np.testing.assert_allclose(bent - free, 0.5 * 0.1, atol=1e-5)


def test_ifca_with_one_model_is_plain_fedavg():
    # Ghosh et al., section 4: with k = 1 nothing is left to choose.
    here = federation(rounds=1)
    plain = {c: here.train(c, here.initial, 1) for c in here.clients}
    outcome = ifca.run(here, k=1)
    np.testing.assert_array_equal(outcome.models["partition-0"], here.mean(plain, weighted=False))


def test_ifca_sends_every_model_to_everyone():
    _, one = in_process(lambda here: ifca.run(here, k=1), config())
    _, four = in_process(lambda here: ifca.run(here, k=4), config())
    assert four.down == 4 * one.down
    assert four.up == one.up


def test_pacfl_separates_rotations_and_leaves_label_groups_together():
    families = "rotation-2", "label-permutation-4"
    turned, named = (pacfl.run(federation(family), 12.0).groups or {} for family in families)
    assert len({turned[f"partition-{i}"] for i in range(5)}) == 1
    assert (len(set(turned.values())), len(set(named.values()))) == (2, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "shared"),
    [
        (partial(apfl.run, alpha=1.0), 0),  # Deng et al., section 3: v̄ = α v + (1 - α) w
        (partial(apfl.run, alpha=1e-6), 1),
        # Dinh et al., Algorithm 1 with a copy that goes all the way after every step.
        (partial(pfedme.run, strength=0.0, rate=1.0, steps=1), 1),
        (partial(stocfl.run, tau=-1.0, strength=0.0), 2),  # Zeng et al., Algorithm 1
    ],
    ids=["apfl of the own model", "apfl of the common model", "pfedme", "stocfl"],
)
def test_a_method_at_the_end_of_its_settings_trains_alone_after_rounds_of_fedavg(method, shared):
    here = federation(rounds=2)
    model = common_after(here, shared)
    for server_round in range(shared + 1, 3):
        model = here.train("partition-3", model, server_round)
    found = method(here).models["partition-3"]
    assert np.linalg.norm(found - model) < 1e-5 * np.linalg.norm(model - here.initial)


def test_the_copy_of_pfedme_follows_after_every_k_steps():
    copy = pfedme.Copy(np.zeros(3, np.float32), strength=2.0, rate=0.5, steps=2)
    here, still, first = torch.ones(2), torch.zeros(2), slice(0, 2)
    pulls = [copy.pull(first, still, here).tolist() for _ in range(5)]
    assert [pull[0] for pull in pulls] == [2.0, 2.0, 1.0, 1.0, 0.5]
    assert copy.values.tolist() == [0.75, 0.75, 0.0]


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
    assert not any(one & other for one, other in combinations(kinds_of, 2))


PLANTED = {"num-groups": 2, "min-available-nodes": 8, "num-server-rounds": 3, "local-epochs": 2}
"""Of the family label-permutation-4: clients 0 to 3 and 4 to 7 name the digits differently."""


@pytest.mark.parametrize(
    "method",
    [partial(srfca.run, near=2.0), partial(stocfl.run, tau=0.5, strength=0.05), ocfl.run],
    ids=["srfca", "stocfl", "ocfl"],
)
def test_groups_that_name_digits_differently_are_found_without_their_number(method):
    outcome = method(Federation(config("label-permutation-4", **PLANTED)))
    found = [outcome.groups[f"partition-{i}"] for i in range(8)]
    assert len(set(found[:4])) == 1 == len(set(found[4:]))
    assert found[0] != found[4]


def test_srfca_puts_clients_together_that_are_near_and_drops_no_one():
    # Vardhan et al., ONE_SHOT: with λ beyond every loss all are one group, with none everyone
    # stays alone.
    here = federation(rounds=3)
    together, alone = (srfca.run(here, near).groups or {} for near in (1e9, 0.0))
    assert (len(set(together.values())), len(set(alone.values()))) == (1, len(here.clients))


def test_stocfl_merges_the_most_similar_and_keeps_the_model_of_the_larger_group():
    groups = {"a": 0, "b": 1, "c": 1, "d": 3}
    models = {0: np.zeros(2, np.float32), 1: np.ones(2, np.float32)}
    directions = np.array([[1, 0], [1, 0.1], [1, 0.1], [0, 1]], np.float32)
    described = dict(zip("abcd", directions, strict=True))
    stocfl.merge(groups, models, "abcd", described, tau=0.9)
    assert groups == {"a": 0, "b": 0, "c": 0, "d": 3}
    assert {group: model.tolist() for group, model in models.items()} == {0: [1, 1]}


def test_ocfl_is_coldest_where_all_updates_agree_and_makes_one_group_of_what_is_alike():
    model, updates = np.zeros(4, np.float32), np.eye(4, dtype=np.float32)
    agreed = {name: updates[0] for name in "abcd"}
    apart = dict(zip("abcd", updates, strict=True))
    assert ocfl.temperature_of(ocfl.distances(agreed, model)) == 0
    assert ocfl.temperature_of(ocfl.distances(apart, model)) == pytest.approx(0.5)
    assert len(set(ocfl.clustered(ocfl.distances(apart, model)))) == 1


def test_every_tuned_value_is_one_methods_and_stands_in_what_it_was_given():
    used = [name for peer in PEERS.values() for name in peer.takes.values() if name != "k"]
    for data, values in TUNED.items():
        assert sorted([*used, "strength"]) == sorted(values)
        given = " ".join(entry(name, data, 4).given for name in (*PEERS, "ditto"))
        assert all(f"{value:g}" in given for value in values.values())


def test_a_method_is_compared_with_cflower_on_its_own_federations_and_spreads_over_seeds():
    common = {"data": "digits", "exact": True, "worst": 0.5, "down": 0, "up": 0, "given": ""}
    common |= {"server_seconds": 0.0, "client_seconds": 0.0}
    figures = {
        "cflower": {("rotation-2", 0): 0.9, ("rotation-2", 1): 0.8, ("rotation-4", 1): 0.3},
        "ifca": {("rotation-2", 0): 0.91, ("rotation-2", 1): 0.77, ("rotation-4", 1): 0.1 * 3},
        "pacfl": {("rotation-2", 2): 0.9},
        "isolated": {("rotation-2", 0): 0.99, ("rotation-4", 1): 0.4},
    }
    keys = ("method", "family", "seed", "accuracy", "clients")
    records = [
        common | dict(zip(keys, (method, family, seed, accuracy, [(accuracy, 100)]), strict=True))
        for method, runs in figures.items()
        for (family, seed), accuracy in runs.items()
    ]
    found = {line["method"]: line for line in summary_lines(pd.DataFrame(records))}
    assert found["ifca"]["accuracy"] == "66.0 ± 26.5"
    assert found["ifca"]["less cflower's"] == "-0.7 ± 1.8"
    assert found["ifca"]["better, worse"] == "1, 1"
    assert found["cflower"]["worse than alone"] == "1 of 2"
    assert found["pacfl"]["accuracy"] == "90.0"
    assert found["pacfl"]["worse than alone"] == "-"  # nobody was alone there
    assert found["pacfl"]["less cflower's"] == "-"  # cflower has not run there
    assert found["cflower"]["less cflower's"] == "-"


def test_clove_sends_every_model_until_the_groups_are_stable_and_finds_the_groups():
    here = Federation(config("label-permutation-4", **PLANTED | {"num-server-rounds": 5}))
    found = clove.run(here, k=2).groups or {}
    assert {found[f"partition-{i}"] for i in range(4)} != {
        found[f"partition-{i}"] for i in range(4, 8)
    }
    assert len(set(found.values())) == 2
    one = 4 * len(here.initial) * len(here.clients)
    assert here.cost.down == (3 * 2 + 2 * 1) * one  # two models in three rounds, then its own


def test_clove_gives_each_group_the_model_with_the_least_losses_in_sum():
    losses = np.array([[1.0, 2.0], [1.0, 3.0], [0.9, 9.0]])
    assert clove.matched(np.array([0, 0, 1]), losses) == [1, 0]


def test_clove_takes_more_groups_only_if_the_silhouette_is_a_tenth_better():
    far = np.repeat(np.eye(3) * 9, 4, axis=0) + generator(0, "n").normal(size=(12, 3)) / 100
    assert clove.best_number(far) == 3


def test_feroma_mixes_a_client_with_those_whose_data_resemble_its_own():
    here = federation()
    names = list(here.clients)[:3]
    trained = {name: np.full(2, i, np.float32) for i, name in enumerate(names)}
    before = {name: np.array([float(i // 2)]) for i, name in enumerate(names)}
    made = feroma.mapped(here, trained, {names[0]: np.array([0.0])}, before)
    sizes = [len(here.clients[name].train) for name in names]
    assert made[names[0]][0] == pytest.approx(sizes[1] / (sizes[0] + sizes[1]), abs=1e-5)
    assert set(feroma.mapped(here, trained, {names[0]: np.zeros(1)}, {})) == {names[0]}


def test_methods_that_decide_nothing_train_on_the_deciding_examples_too():
    plain_one, all_one = Federation(config()), Federation(config(), all_examples=True)
    for name, data in plain_one.clients.items():
        assert len(all_one.clients[name].train) == len(data.train) + len(data.decide)
        assert all_one.clients[name].report is data.report or np.array_equal(
            all_one.clients[name].report.inputs, data.report.inputs
        )


def test_training_alone_is_fedavg_of_groups_of_one():
    here = federation(rounds=2)
    model = here.initial
    for server_round in (1, 2):
        model = here.train("partition-3", model, server_round)
    np.testing.assert_array_equal(plain.isolated(here).models["partition-3"], model)


def test_a_method_as_long_has_rounds_for_as_many_trainings_as_cflowers_may_be(tmp_path):
    what = {"data": "digits", "family": "rotation-2", "method": "isolated" + LONGER, "seed": 0}
    keys = {"num-server-rounds": 20, "min-available-nodes": 40, "fraction-train": 0.5}
    with pytest.raises(ConfigError, match="has not run"):
        rounds_as_long(what, keys, tmp_path)
    for method, trainings in {"isolated": 400, "fine-tuned": 460, "pfedme": 800}.items():
        write_record({"trainings": trainings}, tmp_path / f"digits--rotation-2--{method}--0.json")
    for method, rounds in {"isolated": 26, "fine-tuned": 23, "pfedme": 20}.items():
        assert rounds_as_long(what | {"method": method + LONGER}, keys, tmp_path) == rounds


def test_differences_by_family_have_intervals_and_the_mean_is_shown_without_the_largest():
    figures = {
        ("near", 0): (0.90, 0.89), ("near", 1): (0.90, 0.91),
        ("far", 0): (0.90, 0.50), ("far", 1): (0.90, 0.50),
    }  # fmt: skip
    runs = pd.DataFrame(
        {"data": "digits", "family": family, "seed": seed, "method": method, "accuracy": accuracy}
        for (family, seed), pair in figures.items()
        for method, accuracy in zip(("cflower", "ifca"), pair, strict=True)
    )
    near, far, mean, rest = (line["ifca"] for line in family_lines(runs))
    assert near == "+0.0 ± 12.7"  # 12.706 / √2 times √2 points
    assert (far, mean, rest) == ("-40.0 ± 0.0", "-20.0", "+0.0")
    elsewhere = runs.assign(family="elsewhere", method="clove")[:1]
    assert "clove" not in family_lines(pd.concat([runs, elsewhere]))[0]  # nothing to compare


def test_a_method_of_fluke_says_which_environment_it_needs(monkeypatch):
    monkeypatch.delenv(of_fluke.PYTHON, raising=False)
    with pytest.raises(ConfigError, match="FLUKE_PYTHON is not set: name the Python"):
        of_fluke.run(federation(), "FedPer")


def test_by_client_each_counts_as_much_and_the_median_stands_beside_the_mean():
    figures = {
        "cflower": [[0.9, 10], [0.5, 1000], [0.9, 10]],
        "ifca": [[0.8, 10], [0.7, 1000], [0.8, 10]],
        "oracle": [[1.0, 10], [1.0, 1000], [1.0, 10]],
    }
    run = {"data": "digits", "family": "f", "seed": 0, "accuracy": 0.5}
    runs = pd.DataFrame([run | {"method": m, "clients": some} for m, some in figures.items()])
    family, mean, bold = client_lines(runs)
    assert (family["cflower"], family["ifca"]) == ("**76.7**, 90.0", "**76.7**, 80.0")
    assert (family["oracle"], mean["oracle"]) == ("100.0, 100.0", "100.0, 100.0")
    assert (bold["cflower"], bold["ifca"], bold["oracle"]) == ("1", "1", "0")


def test_every_clients_figure_is_a_row():
    run = {"data": "digits", "family": "f", "method": "ifca", "seed": 0}
    runs = pd.DataFrame([run | {"names": ["a", "b"], "clients": [[0.5, 10], [0.75, 20]]}])
    rows = client_rows(runs)
    assert rows[["client", "accuracy", "held_out"]].to_dict("list") == {
        "client": ["a", "b"], "accuracy": [0.5, 0.75], "held_out": [10, 20],
    }  # fmt: skip


def test_clients_served_worse_are_counted_by_family_against_what_they_had_otherwise():
    run = {"data": "digits", "family": "f", "seed": 0, "names": ["a", "b"]}
    runs = pd.DataFrame(
        [
            run | {"method": "cflower", "clients": [[0.5, 100], [0.9, 100]]},
            run | {"method": "isolated", "clients": [[0.8, 100], [0.9, 100]]},
            run | {"method": "fine-tuned as long", "clients": [[0.55, 100], [0.9, 100]]},
            run | {"method": "ifca", "clients": [[1.0, 100], [1.0, 100]]},
        ]
    )
    family, everything = served_worse(runs)
    assert family == {
        "data": "digits", "family": "f",
        "isolated": "1 of 2", "fine-tuned as long": "0 of 2",
    }  # fmt: skip
    assert everything["isolated"] == "1 of 2"


def test_the_best_methods_of_a_family_are_bold_but_not_the_one_that_is_given_the_groups():
    figures = {"cflower": (0.8, 0.9), "ifca": (0.846, 0.846), "oracle": (0.9, 0.9)}
    runs = pd.DataFrame(
        {
            "data": "digits", "family": "f", "seed": seed, "method": method, "accuracy": value,
            "exact": seed == 1, "down": 3e6, "up": 2e6, "trainings": 40.0, "clients": [[0, 0]],
            "client_seconds": 1.0,
        }
        for method, values in figures.items()
        for seed, value in enumerate(values)
    )  # fmt: skip
    lines = {line["family"]: line for line in accuracy_lines(runs)}
    family = {"found": "1 of 2", "cflower": "**85.0**", "ifca": "**84.6**", "oracle": "90.0"}
    assert lines["f"] == {"data": "digits", "family": "f"} | family
    assert [lines["in bold"][m] for m in figures] == ["1", "1", "0"]
    assert lines["trainings a client"]["ifca"] == "40.0"
    assert (lines["MB down"]["ifca"], lines["MB up"]["ifca"]) == ("3.0", "2.0")


@pytest.mark.slow
def test_the_command_measures_all_methods_and_resumes(tmp_path):
    args = ["--families", "rotation-2,no-groups-iid", "--seeds", "0", "--out", tmp_path]
    args += ["--set", "model='mlp' dataset-size=300 local-epochs=1 num-server-rounds=4"]
    count = 2 * len(NAMES)
    assert f"{count} runs, 0 there already, {count} to do." in script("run.py", "peers", *args)
    again = script("run.py", "peers", *args)
    assert f"{count} runs, {count} there already, 0 to do." in again
    with (tmp_path / "peers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == count
    assert {row["method"] for row in rows} == set(NAMES)
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")
    assert "| digits | ifca " in again
    record = json.loads((tmp_path / "digits--rotation-2--ifca--0.json").read_text())
    assert record["config"]["model"] == "mlp"
