"""The headline of a run: true by its own held-out figures, and a sentence for each kind of run."""

import numpy as np
import pytest

from cflower.metric import Metric
from cflower.runs.answer import advice, answer, examples_needed
from cflower.runs.records import Summary
from cflower.runs.tables import method_rows
from cflower.runs.ways import Ways, against, student

NAMES = [f"c-{i}" for i in range(20)]


def ways(own, common=None, *, groups=2, metric="accuracy", baselines=None, held_out=20, **more):
    """A finished run whose clients have these values, with those of the common model."""
    values = dict(zip(NAMES, own, strict=False))
    clients = {}
    for i, (name, value) in enumerate(values.items()):
        clients[name] = {"cluster": f"0.{i % groups}", metric: value, "held_out": held_out}
        if common is not None:
            clients[name][f"fl_{metric}"] = common[i]
    parts = {f"0.{k}": [n for i, n in enumerate(values) if i % groups == k] for k in range(groups)}
    split = {"round": 5, "cluster": "0", "children": [*parts], "alpha_cross": 0.1}
    lines = {
        key: {
            metric: sum(them) / len(them),
            "rounds": 9,
            "clients": dict(zip(NAMES, them, strict=False)),
        }
        for key, them in (baselines or {}).items()
    }
    summary = {
        "run_id": "",
        "finished": True,
        "rounds": 9,
        "metric": {"name": metric, "higher_is_better": Metric.of(metric).higher_is_better},
        "clusters": parts if groups > 1 else {"0": list(values)},
        "splits": [split | {"trial": "confirmed"}] if groups > 1 else [],
        "clients": clients,
        "metrics": {metric: sum(own) / len(own)},
        "baselines": lines,
    }
    if common is not None:
        summary["metrics"][f"fl_{metric}"] = sum(common) / len(common)
    return Ways(Summary.model_validate(summary | more))


def test_a_gain_of_all_clients_is_the_headline():
    text = answer(ways([0.9] * 20, [0.2] * 20, groups=4))
    assert text == (
        "All 20 clients are served better in four groups: 90.0% right, 20.0% with the average of "
        "the four models."
    )
    text = answer(ways([0.9] * 20, [0.2] * 20, baselines={"federated": [0.25] * 20}))
    assert text.endswith("in two groups: 90.0% right, 25.0% with one model for all.")


def test_a_gain_over_one_model_is_no_gain_over_training_alone():
    own = [0.9] * 10
    for alone, than in [(0.3, ""), (0.9, " than by one model")]:
        text = answer(ways(own, baselines={"federated": [0.2] * 10, "isolated": [alone] * 10}))
        assert text.startswith(f"All 10 clients are served better in two groups{than}: 90.0% right")


def test_clients_that_lose_are_named():
    text = answer(ways([0.9] * 19 + [0.1], [0.5] * 20))
    assert text.startswith("19 of 20 clients are served better in two groups, 1 worse: 86.0% right")


@pytest.mark.parametrize("gain", [0.0, 0.01])
def test_a_gain_that_may_be_chance_is_not_claimed(gain):
    own = [0.7 + gain + 0.1 * (-1) ** i for i in range(20)]
    text = answer(ways(own, [0.7] * 20, baselines={"federated": [0.7] * 20}))
    assert text.startswith(
        "Two groups are not shown to serve the 20 clients better than one model for all: "
    )
    assert text.endswith("% right, 70.0% with it.")


def test_a_loss_is_said():
    text = answer(ways([0.5] * 20, [0.2] * 20, baselines={"federated": [0.9] * 20}))
    assert text == (
        "One model for all serves the 20 clients better than two groups: 50.0% right, 90.0% with "
        "it."
    )


def test_too_few_examples_claim_nothing():
    text = answer(ways([0.9] * 4, [0.2] * 4, held_out=2))
    assert text.startswith("Two groups are not shown to serve the 4 clients better than the aver")


def test_an_error_says_that_lower_is_better():
    text = answer(ways([0.5] * 8, [3.0] * 8, metric="rmse"))
    assert text.startswith("All 8 clients are served better in two groups: rmse 0.5, 3 with the ")
    assert text.endswith("(lower is better).")


def test_a_run_without_groups_has_a_sentence_of_its_own():
    none = ways([0.9] * 20, groups=1, not_split="No split: too small.")
    assert answer(none) == "No groups are found: one model serves all 20 clients, 90.0% right."
    refused = [{"round": 4, "cluster": "0", "reason": "2 of 20 better"}]
    text = answer(ways([0.9] * 20, groups=1, not_split="No split.", refused=refused))
    assert text == (
        "One model serves all 20 clients, 90.0% right: separate models are not shown to serve them "
        "better."
    )
    never = ways([0.9] * 20, groups=1)
    assert answer(never) == "One model serves all 20 clients, 90.0% right."
    assert (
        answer(ways([0.9] * 20, splits=[])) == "Each of the 20 clients trains alone: 90.0% right."
    )


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        (0.5, "All 8 clients are served better by models of their own: 90.0% right, 50.0% with"),
        (0.9, "Models of their own are not shown to serve the 8 clients better: 90.0% right"),
    ],
)
def test_personal_models_are_claimed_only_where_they_are_better(leaf, words):
    step = {"accepted": True, "reason": "", "kappa": 1, "start": "leaf", "length": 1, "clients": 8}
    run = ways([0.9] * 8, groups=1, personal={"0": step}, not_split="No split: too small.")
    for client in run.summary.clients.values():
        client.figures["leaf_accuracy"] = leaf
    run.summary.metrics["leaf_accuracy"] = leaf
    assert answer(Ways(run.summary)).startswith(words)


def test_a_run_that_goes_on_claims_nothing():
    text = answer(ways([0.9] * 20, [0.2] * 20, finished=False))
    assert text == "So far, after 9 rounds: 20 clients in two groups."


def test_of_each_method_the_table_has_the_number_of_clients_that_are_better_off_alone():
    run = ways([0.9, 0.5], baselines={"federated": [0.2, 0.6], "isolated": [0.3, 0.6]})
    counts = {row["method"]: row["worse than\nalone"] for row in method_rows(run)}
    assert counts == {"each client alone": "-", "conventional FL": "1 of 2", "clusters": "1 of 2"}


def test_that_no_federation_is_needed_is_not_said_because_of_too_few_rows():
    alone = [0.7 + 0.2 * (-1) ** i for i in range(16)]
    own = [value + 0.05 + 0.15 * (-1) ** (i // 2) for i, value in enumerate(alone)]
    text = advice(ways(own, baselines={"isolated": alone}, held_out=3))
    assert text.startswith("No method is shown to be better than each client alone: the better ")
    assert "held-out examples would tell" in text and "the 48 of these clients" in text
    worse = [value - 0.3 for value in alone]
    text = advice(ways(worse, baselines={"isolated": alone}, held_out=3))
    assert text.startswith("Use each client alone (no federation is needed): ")
    even = [value - 0.01 * (-1) ** (i // 2) - 0.001 for i, value in enumerate(alone)]
    text = advice(ways(even, baselines={"isolated": alone}, held_out=3))
    assert (
        text == "No method is shown to be better than each client alone, which has the best mean."
    )


def test_a_method_that_shares_no_client_with_the_best_one_is_not_advised():
    measured = {"federated": [0.5] * 20, "isolated": [0.7] * 20}
    run = ways([0.9] * 20, baselines=measured)
    run.summary.baselines["isolated"].clients = {"another": 0.7}
    assert advice(Ways(run.summary)) == (
        "Use clusters (with ClusteredFL): accuracy 90.0%, +40.0 points against conventional FL; 20 "
        "clients better, 0 worse."
    )


def test_as_many_examples_as_are_needed_find_the_difference_four_times_in_five():
    rng = np.random.default_rng(0)
    clients, each, gain = 16, 40, 0.04

    def measured(examples):
        """Each client's gain over so many examples, of which some change their outcome."""
        draws = rng.choice([1, -1, 0], p=[0.1 + gain, 0.1, 0.8 - gain], size=(clients, examples))
        gains = dict(zip(NAMES, draws.mean(axis=1), strict=False))
        zero = dict.fromkeys(gains, 0.0)
        return against(gains, zero, dict.fromkeys(gains, examples), Metric())

    # With the true gain and spread, in place of one measured draw of them.
    pair = measured(each)
    assert pair is not None
    error = np.sqrt((0.2 + gain - gain**2) / (clients * each))
    pair = pair._replace(difference=gain, margin=student(clients - 1) * error)
    needed = int(examples_needed(pair).split()[1].replace(",", ""))
    found = [measured(round(needed / clients)).verdict == "worth it" for _ in range(300)]
    assert 0.7 < np.mean(found) < 0.88
