"""No client moves its cluster's model further than a few usual ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.constants import LONG, MOST
from cflower.algorithm.state import Ask, CFLState, KnownUpdate, Role, Training
from cflower.algorithm.tree import ParameterTree
from cflower.algorithm.weights import Weights
from cflower.robust.robust_mean import RobustMean, limited, usual_of


def reply(client, length, examples=100.0):
    trained = np.array([length, 0, 0, 0], np.float32)
    update = Weights(trained, np.zeros(0))
    ask = Ask(f"c{client}", "0", Role.OWN, 2)
    return Training(ask, examples, update=update, norm=float(length), kept=trained)


def known(*clients, norm=1.0, direction=0.0):
    """Last updates, of norm 1 unless another one is given; along the replies', or against them."""
    zeros, vector = np.zeros(4), np.array([direction, 0, 0, 0])
    return {f"c{i}": KnownUpdate(1, vector, norm, 100, zeros) for i in clients}


def state_of(size, updates=None):
    members = [f"c{i}" for i in range(size)]
    model = Weights(np.zeros(4, np.float32), np.zeros(0))
    return CFLState(ParameterTree.initial(model, members), known=updates or {})


def bounded(*replies, state=None, weight=float, **settings):
    """The replies as they count, by client, and why others were refused."""
    refused, state = {}, state or state_of(len(replies))
    mean = RobustMean(state, weight, refused.__setitem__, **settings)
    return {one.client: one for one in mean.bounded(replies)}, refused


def lowered(result):
    return {client: one.counts for client, one in result.items() if one.counts < 1}


def length(one):
    return float(np.linalg.norm(one.update.trained))


def pull(one):
    return length(one) * one.num_examples * one.share


@pytest.mark.parametrize("size", [1, 2, 8])
def test_usual_replies_pass_unchanged(size):
    replies = [reply(i, 1 + 0.1 * i, 100 + i) for i in range(size)]
    result, refused = bounded(*replies)
    assert [result[one.client] for one in replies] == replies
    assert refused == {}


@pytest.mark.parametrize("settings", [{}, {"most": 0.0}])
def test_updates_of_any_length_are_bounded_without_an_overflow(settings):
    replies = [reply(i, length) for i, length in enumerate([1e30, 1.1e30, 1.2e30])]
    result, refused = bounded(*replies, **settings)
    assert [result[one.client] for one in replies] == replies
    assert refused == {}


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize(("norm", "examples"), [(100, 100), (1, 1e12), (1e30, 1e12), (3, 200)])
def test_no_client_pulls_more_than_a_few_usual_ones(place, norm, examples):
    replies = [reply(i, 1.0) for i in range(6)]
    replies[place] = reply(place, norm, examples)
    result, refused = bounded(*replies)
    odd = result.pop(f"c{place}")
    assert length(odd) == pytest.approx(min(norm, LONG))
    np.testing.assert_array_equal(odd.kept, odd.update.trained)
    assert pull(odd) <= MOST * 100 * (1 + 1e-6)
    assert odd.norm == norm  # unchanged, for eq. 33
    assert refused == {} and {one.share for one in result.values()} == {1.0}


@pytest.mark.parametrize("norm", [0.0, 1e-3, 1.0])
@pytest.mark.parametrize("place", range(6))
def test_no_client_weighs_more_than_a_few_usual_ones_however_short_its_update(norm, place):
    replies = [reply(i, 1.0) for i in range(12)]
    replies[place] = reply(place, norm, 1e7)
    result, _ = bounded(*replies)
    odd = result.pop(f"c{place}")
    assert odd.num_examples * odd.share == pytest.approx(MOST * 100)
    assert odd.counts < 1 and lowered(result) == {}
    assert {one.share for one in result.values()} == {1.0}


def test_numbers_of_examples_are_limited_where_metrics_are_averaged():
    assert limited([100, 200, 300]).tolist() == [100, 200, 300]
    assert limited([100] * 9 + [1e12])[-1] == MOST * 100
    assert limited([1, 1e12]).tolist() == [1, 1e12]
    assert limited([]).tolist() == []


def test_a_fifth_of_the_clients_pull_less_than_all_others_together():
    replies = [reply(i, 1.0) for i in range(16)] + [reply(i, 50, 1e12) for i in range(16, 20)]
    result, _ = bounded(*replies)
    pulls = [pull(result[one.client]) for one in replies]
    assert sum(pulls[16:]) == pytest.approx(sum(pulls[:16]) * 3 / 4)
    assert set(lowered(result)) == {f"c{i}" for i in range(16, 20)}


@pytest.mark.parametrize(
    ("others", "examples", "most", "counts"),
    [
        (2, 1e12, MOST, 100 * MOST),
        (6, 1e12, MOST, 100 * MOST),
        (9, 1000, MOST, 300),
        (9, 10_000, MOST, 100 * MOST),
        (9, 10_000, 30.0, 3000),
        (9, 10_000, 100.0, 10_000),
    ],
)
def test_a_large_client_counts_for_as_many_usual_ones_as_are_set(others, examples, most, counts):
    replies = [reply(0, 1.0, examples), *(reply(i, 1.0) for i in range(1, others + 1))]
    result, _ = bounded(*replies, most=most)
    assert pull(result["c0"]) == pytest.approx(counts)
    assert lowered(result) == (
        {"c0": pytest.approx(counts / examples)} if counts < examples else {}
    )


def test_without_a_bound_the_mean_is_eq_2():
    replies = [reply(i, 1.0) for i in range(5)]
    replies.append(reply(5, 1000, 1e9))
    result, refused = bounded(*replies, most=0.0)
    for one in replies:
        for now, before in zip(result[one.client].update, one.update, strict=True):
            np.testing.assert_array_equal(now, before)
        assert result[one.client].share == 1.0
    assert refused == lowered(result) == {}


@pytest.mark.parametrize("most", [0.0, MOST])
def test_an_update_that_is_not_finite_is_refused(most):
    replies = [reply(i, 1.0) for i in range(5)]
    odd = reply(5, 1000), reply(6, np.nan), reply(7, np.inf)
    result, refused = bounded(*replies, *odd, most=most)
    assert set(result) == {f"c{i}" for i in range(6)}
    assert "not finite" in refused.pop("c6") and "not finite" in refused.pop("c7")
    assert refused == {}


def test_with_uniform_weights_only_the_norm_counts():
    replies = [reply(i, 1.0, 10.0**i) for i in range(6)]
    result, _ = bounded(*replies, weight=lambda examples: 1.0)
    assert {one.share for one in result.values()} == {1.0}
    assert lowered(result) == {}


def test_the_last_updates_of_members_that_do_not_take_part_count():
    result, _ = bounded(reply(5, 100.0), state=state_of(6, known(*range(5))))
    assert length(result["c5"]) == pytest.approx(LONG)
    assert result["c5"].share == pytest.approx(1 / LONG)  # it pulls like a usual one


def test_the_last_updates_of_members_that_are_gone_do_not_show_what_is_usual():
    gone = range(3, 9)
    state = state_of(9, known(0, 1, 2) | known(*gone, norm=100.0))
    assert length(bounded(reply(0, 10.0), state=state)[0]["c0"]) == pytest.approx(10)
    state = replace(state, absent=tuple(f"c{i}" for i in gone))
    assert length(bounded(reply(0, 10.0), state=state)[0]["c0"]) == pytest.approx(LONG)


@pytest.mark.parametrize("size", [1, 2])
def test_one_or_two_clients_are_not_bounded(size):
    replies = [reply(i, 10.0**i) for i in range(size)]
    assert list(bounded(*replies)[0].values()) == replies


def test_an_update_that_places_a_client_is_not_bounded():
    state = state_of(7)
    state = replace(state, tree=state.tree.called_back("c6", "0"))
    odd = [reply(5, 100.0), reply(6, 100.0)]
    odd[0] = replace(odd[0], ask=odd[0].ask._replace(role=Role.PLACE))
    result, _ = bounded(*(reply(i, 1.0) for i in range(5)), *odd, state=state)
    assert [result["c5"], result["c6"]] == odd


@pytest.mark.parametrize("norm", [1.0, 1e6])
def test_a_client_alone_in_a_round_is_bounded_by_the_last_replies_of_the_others(norm):
    result, _ = bounded(reply(0, norm), state=state_of(6, known(*range(6))))
    assert length(result["c0"]) <= LONG


@pytest.mark.parametrize("place", [0, 1])
def test_of_two_replies_in_the_first_round_the_other_shows_what_is_usual(place):
    replies = [reply(i, 1e6 if i == place else 1.0) for i in range(2)]
    result, _ = bounded(*replies, state=state_of(20))
    assert length(result.pop(f"c{place}")) == pytest.approx(LONG)
    assert [length(one) for one in result.values()] == [1.0]


@pytest.mark.parametrize("place", [0, 1])
def test_a_second_hostile_client_is_not_bounded_by_the_first_ones_length(place):
    replies = [reply(i, 1e6 if i == place else 1.0) for i in range(2)]
    before = {**known(1 - place), **known(2, norm=1e6)}
    result, _ = bounded(*replies, state=state_of(20, before))
    assert length(result[f"c{place}"]) <= LONG**2


@pytest.mark.parametrize(("number", "most"), [(9, LONG), (10, 12.0)])
def test_what_half_of_the_members_do_is_usual(number, most):
    result, _ = bounded(*(reply(i, 12.0 if i >= 20 - number else 1.0) for i in range(20)))
    assert [length(one) for one in result.values()] == [1.0] * (20 - number) + [most] * number


@given(
    st.integers(3, 12).flatmap(
        lambda size: st.tuples(
            st.just(size), st.lists(st.floats(1e-9, 1e30), max_size=(size - 1) // 2)
        )
    )
)
def test_fewer_than_half_of_the_members_cannot_show_anything_as_usual(case):
    size, hostile = case
    honest = np.linspace(1, 2, size - len(hostile))
    figures = [np.full(4, value) for value in (*hostile, *honest)]
    assert ((usual_of(figures, size) >= 1) & (usual_of(figures, size) <= 2)).all()


@pytest.mark.parametrize(("direction", "counts"), [(1.0, MOST), (0.0, MOST), (-1.0, 1.0)])
@pytest.mark.parametrize("examples", [300, 1e12])
def test_a_client_that_points_against_the_others_counts_for_one(examples, direction, counts):
    replies = [reply(i, 1.0, examples if i == 5 else 100) for i in range(12)]
    others = known(*range(12), direction=direction)
    for client, update in known(5, direction=-100.0).items():
        others[client] = update  # what it sent itself is not what the others do
    result, _ = bounded(*replies, state=state_of(12, others))
    assert pull(result["c5"]) == pytest.approx(100 * counts)


def test_without_a_bound_a_client_that_points_against_the_others_counts_for_all_it_has():
    replies = [reply(i, 1.0, 1e12 if i == 5 else 100) for i in range(6)]
    state = state_of(6, known(*range(6), direction=-1.0))
    result, _ = bounded(*replies, state=state, most=0.0)
    assert {one.share for one in result.values()} == {1.0}


@pytest.mark.parametrize("known_updates", [{}, known(1, 2, norm=0.0)])
def test_where_nobody_else_has_sent_an_update_the_model_stays(known_updates):
    alone = reply(0, 1e6, 1e12)
    result, refused = bounded(alone, state=state_of(20, known_updates))
    (odd,) = result.values()
    assert not any(part.any() for part in (*odd.update, odd.kept))
    assert (odd.norm, odd.share, refused, lowered(result)) == (1e6, 1.0, {}, {})


@pytest.mark.parametrize("least", [3, 20])
def test_updates_of_zeros_do_not_silence_those_who_still_learn(least):
    replies = [reply(i, 1.0 if i < 3 else 0.0) for i in range(least)]
    result, _ = bounded(*replies)
    assert [length(result[f"c{i}"]) for i in range(3)] == [1.0] * 3


def test_usual_updates_do_not_wait_for_the_others():
    arrived = []

    def arriving():
        for i in range(20):
            arrived.append(i)
            yield reply(i, 100.0 if i == 5 else 1.0)

    mean = RobustMean(state_of(20), float, refuse=None)
    order = [(one.client, len(arrived)) for one in mean.bounded(arriving())]
    assert order[0] == ("c2", 3) and order[-1] == ("c5", 20)
    assert [client for client, count in order if count == 20] == ["c19", "c0", "c1", "c5"]
