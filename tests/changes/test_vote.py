"""The vote: what counts, who can lie, and how often chance decides."""

from itertools import product
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.constants import LIKELY
from cflower.changes.vote import Ballot, Vote, measures_in, verdict_of
from cflower.metric import Metric
from cflower.seeding import generator
from tests.algorithm.planted import laws

ACCURACY, LOSS = Metric(), Metric("loss", higher_is_better=False)
gains_of = st.lists(st.integers(1, 9999), min_size=1, max_size=12, unique=True).flatmap(
    lambda sizes: st.tuples(*(st.sampled_from([size / 1e4, -size / 1e4]) for size in sizes))
)
"""No two of one size: then scipy's test takes a thousand times as long."""
shares = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6)


def one(own, common, part="0.0", name="accuracy"):
    """One client's ballot by one metric."""
    return Ballot(part, {name: own}, {name: common})


def gaining(*gains, part="0.0"):
    """Ballots of clients with these gains of accuracy over 0.5."""
    return [one(0.5 + gain, 0.5, part) for gain in gains]


def both(accuracy, loss, part="0.0"):
    """A ballot with a pair of accuracies and one of losses, the own model's first."""
    own, common = zip(accuracy, loss, strict=True)
    return Ballot(part, *({"accuracy": a, "loss": x} for a, x in (own, common)))


@laws
@given(shares, st.sampled_from([ACCURACY, LOSS]))
def test_order_does_not_matter_and_exchanged_models_change_the_sign(drawn, measure):
    ballots = [one(a, b, f"0.{i % 2}", measure.name) for i, (a, b) in enumerate(drawn)]
    swapped = [b._replace(own=b.common, common=b.own) for b in ballots]
    first, again = verdict_of(ballots, measure), verdict_of(ballots[::-1], measure)
    turned = verdict_of(swapped, measure)
    assert (first.vote.likely, first.losers) == (again.vote.likely, again.losers)
    assert turned.vote.likely == first.vote.opposite.likely
    assert turned.vote.opposite.likely == first.vote.likely
    assert (turned.vote.better, turned.vote.worse) == (first.vote.worse, first.vote.better)
    assert turned.vote.chance == pytest.approx(first.vote.opposite.chance)
    assert first.measured


@laws
@given(gains_of, st.floats(0.01, 100), st.integers(0, 5))
def test_only_signs_and_ranks_count_and_clients_without_a_difference_have_no_voice(
    gains, scale, silent
):
    chance = Vote(tuple(gains)).chance
    assert 0 < chance <= 1
    assert Vote(tuple(scale * gain for gain in gains)).chance == pytest.approx(chance)
    assert Vote((*gains, *[0.0] * silent)).chance == pytest.approx(chance)


@laws
@given(gains_of, st.integers(0, 11))
def test_one_clients_invented_gain_is_worth_no_more_than_that_of_the_one_with_the_largest(
    gains, liar
):
    liar %= len(gains)
    most = 2.0 * max(map(abs, gains)) + 1
    lies = ((*gains[:liar], lie, *gains[liar + 1 :]) for lie in (most, 1e9, 1e300))
    invented = [Vote(sent).chance for sent in lies]
    assert invented[0] == invented[1] == invented[2]


@pytest.mark.parametrize("lie", [-0.5, -1e-6])
@pytest.mark.parametrize("gain", [0.002, 0.1])
@pytest.mark.parametrize("liars", [1, 2, 4])
def test_lies_do_not_prevent_a_split_from_which_all_others_gain(liars, gain, lie):
    noise = generator(liars, "gain").uniform(0.5, 1.5, 20 - liars)
    ballots = gaining(*(gain * noise), *[lie] * liars)
    verdict = verdict_of(ballots, ACCURACY)
    assert verdict.vote.likely
    # Nor if the liars have a loss besides.
    losses = [b._replace(own={**b.own, "loss": 1.0}) for b in ballots]
    losses = [b._replace(common={**b.common, "loss": 1.0}) for b in losses]
    for i in range(20 - liars, 20):
        losses[i] = losses[i]._replace(own={"accuracy": 0.0, "loss": 1e30})
    assert verdict_of(losses, ACCURACY).vote.likely


@pytest.mark.parametrize("liars", [1, 2, 4])
def test_lies_do_not_make_a_split_by_which_all_others_lose(liars):
    noise = generator(liars, "loss").uniform(0.5, 1.5, 20 - liars)
    verdict = verdict_of(gaining(*(-0.01 * noise), *[0.5] * liars), ACCURACY)
    assert not verdict.vote.likely
    assert verdict.vote.opposite.likely


@pytest.mark.parametrize("loss", [0.02, 0.1, 0.3])
def test_a_part_of_six_that_loses_a_lot_is_known_to_lose_whatever_14_others_gain(loss):
    for seed in range(20):
        noise = generator(seed, "14 and 6").normal(0, 0.002, 20)
        gains = np.r_[np.full(14, 0.01), np.full(6, -loss)] + noise
        ballots = gaining(*gains[:14]) + gaining(*gains[14:], part="0.1")
        assert verdict_of(ballots, ACCURACY).losers == {"0.1"}


@pytest.mark.parametrize("clients", [2, 3, 5, 6])
def test_for_significance_fewer_than_seven_clients_must_agree(clients):
    assert Vote((0.1,) * clients).significant
    assert not Vote((-0.1,) * clients).significant
    for odd in (-0.0001, -0.4):
        mixed = Vote((*[0.1] * (clients - 1), odd))
        assert not (mixed.significant or mixed.opposite.significant)
    # Who sees no difference has no voice.
    assert Vote((*[0.1] * clients, 0.0, 0.0)).significant
    assert not Vote((0.0,) * clients).significant


def test_for_significance_nine_of_ten_clients_suffice_and_seven_do_not():
    for worse, shown in ((1, True), (3, False)):
        gains = [0.1 + i / 100 for i in range(10 - worse)] + [-0.2] * worse
        assert Vote(tuple(gains)).significant is shown


def by_chance(clients):
    """How often clients to whom a change makes no difference gain: likely, and significantly."""
    ranks, all_signs = np.arange(1, clients + 1) / 100, product((1, -1), repeat=clients)
    votes = [Vote(tuple(ranks * signs)) for signs in all_signs]
    return fmean(vote.likely for vote in votes), fmean(vote.significant for vote in votes)


@pytest.mark.parametrize("clients", [2, 3, 4, 5, 6, 7, 8, 10])
def test_a_split_that_changes_nothing_is_made_in_at_most_three_of_ten_votes(clients):
    """Either of two tests suffices, so it is a little more than the p-value."""
    likely, significant = by_chance(clients)
    assert likely <= 0.3
    assert significant <= max(0.02, 0.5**clients)


def test_one_voice_is_likely_for_its_own_leaf_and_never_significant():
    assert Vote((0.1,)).likely
    for gain in (0.1, -0.1):
        assert not Vote((gain, 0.0)).significant


@pytest.mark.parametrize(("clients", "parts"), [(1, 1), (1, 3), (2, 2), (5, 2)])
def test_a_single_client_or_part_that_gains_may_be_better_off(clients, parts):
    """So a join leaves it its own model."""
    others = [b for i in range(1, parts + 1) for b in gaining(*[-0.1] * 4, part=f"0.{i}")]
    alone = gaining(*[0.1] * clients, part="0.9")
    assert verdict_of(others + alone, ACCURACY).may_be_better
    lost = gaining(*[-0.1] * clients, part="0.9")
    assert not verdict_of(others + lost, ACCURACY).may_be_better
    equal = gaining(*[0.0] * clients, part="0.9")
    assert not verdict_of(others + equal, ACCURACY).may_be_better


@laws
@given(gains_of, gains_of)
def test_the_losers_are_parts_with_a_likely_loss(first, second):
    verdict = verdict_of(
        gaining(*np.divide(first, 2)) + gaining(*np.divide(second, 2), part="0.1"), ACCURACY
    )
    for part, vote in verdict.parts.items():
        alone = len(vote.gains) == 1 and vote.worse == 1
        assert (part in verdict.losers) == (vote.opposite.chance <= LIKELY or alone)


def test_a_gain_is_the_sum_of_the_relative_gains_by_all_measures():
    assert both((0.6, 0.4), (1.0, 3.0)).gain([ACCURACY, LOSS]) == pytest.approx(0.2 + 0.5)
    assert both((0.6, 0.4), (1.0, 3.0)).gain([LOSS]) == 0.5
    assert both((0.0, 0.0), (1.0, 3.0)).gain([ACCURACY]) == 0.0
    assert Ballot("0", {"loss": 1.0}, {"accuracy": 0.5}).gain([ACCURACY, LOSS]) == 0.0


@pytest.mark.parametrize("metric", [ACCURACY, Metric("mse", higher_is_better=False)])
def test_a_model_with_a_plausible_value_is_better_than_one_without(metric):
    """NaN is left out of a reply, so that a client would have no voice on a model that gives it."""
    sure, none = {"accuracy": 0.5, "brier": 0.6, "mse": 2.0}, {"accuracy": 0.5}
    ballots = [Ballot("0.0", sure, none) for _ in range(6)]
    verdict, title = verdict_of(ballots, metric), "Brier score" if metric == ACCURACY else "mse"
    assert (verdict.vote.better, verdict.vote.likely) == (6, True)
    assert f"one of the models has no plausible {title})" in verdict.reason
    swapped = verdict_of([one._replace(own=none, common=sure) for one in ballots], metric)
    assert (swapped.vote.worse, swapped.vote.opposite.likely) == (6, True)


@laws
@given(*[st.floats(-1e300, 1e300)] * 4)
def test_a_gain_is_bounded_whatever_a_client_claims(own, other, loss, common):
    assert -2 <= both((own, other), (loss, common)).gain([ACCURACY, LOSS]) <= 2


def test_the_reason_and_the_figures_name_what_was_counted():
    verdict = verdict_of(gaining(0.1, 0.2, 0.3, 0.1, 0.1, 0.2), ACCURACY)
    assert verdict.reason == (
        "6 of 6 clients better off, 0 worse "
        "(accuracy 66.7% with separate models, 50.0% with a common one)"
    )
    assert verdict.figures["accuracy_own"] == pytest.approx(2 / 3)
    assert verdict.figures["accuracy_common"] == 0.5
    assert verdict.figures["gain_chance"] == pytest.approx(1 / 64)
    counts = [verdict.figures[key] for key in ("better", "worse", "voters")]
    assert counts == [6, 0, 6]


def test_the_loss_decides_where_nobody_measured_the_leading_metric():
    ballots = [one(0.1, 0.4, name="loss") for _ in range(6)]
    verdict = verdict_of(ballots, ACCURACY)
    assert verdict.vote.likely
    assert "loss 0.1 with separate models" in verdict.reason


def brier(own, common, accuracy=(0.5, 0.9), name="accuracy"):
    """A ballot with a pair of Brier scores, and one of other metrics that say the opposite."""
    metrics = zip((own, common), accuracy, (2.0, 1.0), strict=True)
    return Ballot("0.0", *({"brier": s, name: a, "loss": x} for s, a, x in metrics))


def test_the_brier_score_decides_alone_where_accuracy_leads():
    ballots = [brier(0.5, 0.6) for _ in range(8)]
    verdict = verdict_of(ballots, ACCURACY)
    assert (verdict.vote.likely, verdict.vote.better) == (True, 8)
    assert "(Brier score 0.5 with separate models, 0.6 with a common one)" in verdict.reason
    assert verdict.figures["accuracy_common"] == 0.9
    # Neither where another metric leads, nor by the word of a minority.
    for name in ("f1", "balanced_accuracy"):
        other = [brier(0.5, 0.6, name=name) for _ in range(8)]
        assert not verdict_of(other, Metric(name)).vote.likely
    few = [*ballots[:4], *[both((0.5, 0.9), (2.0, 1.0)) for _ in range(4)]]
    assert not verdict_of(few, ACCURACY).vote.likely


@pytest.mark.parametrize("ballots", [[], [one(1.0, 0.0, name="f1")]])
def test_without_an_evaluation_there_is_no_verdict(ballots):
    verdict = verdict_of(ballots, ACCURACY)
    assert not verdict.measured
    assert (verdict.vote.likely, verdict.may_be_better, verdict.losers) == (False, False, set())
    assert "no client evaluated both models by" in verdict.reason


def test_a_loss_that_one_client_invents_is_no_measure():
    metrics: list[dict[str, float]] = [{"accuracy": 0.9, "loss": 0.1} for _ in range(3)]
    metrics[0]["a-loss"] = 0.0
    names = [measure.name for measure in measures_in(metrics, Metric("accuracy"))]
    assert names == ["accuracy", "loss"]
    assert measures_in(metrics[:1], Metric("loss", False)) == [LOSS, Metric("a-loss", False)]


def test_of_several_proper_scores_briers_counts_and_else_the_first_loss():
    for names, score in (("loss brier", "brier"), ("test_loss loss", "loss"), ("recall", "")):
        reported = [dict.fromkeys(["accuracy", *names.split()], 0.5)] * 3
        found = [measure.name for measure in measures_in(reported, ACCURACY)]
        assert found == ["accuracy", *filter(None, [score])]
