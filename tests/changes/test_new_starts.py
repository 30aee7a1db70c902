"""Leaves of members with changed data: when they start from the run's first model."""

from dataclasses import replace

import numpy as np
import pytest

from cflower.algorithm.state import Reply, Role
from tests.algorithm.planted import DIM, Federation, vector
from tests.changes.test_moves import ALIKE, FEDERATION, JUDGED, after, leaf

FIRST = vector(np.ones(DIM))
THIRD = Federation.dealt(5, 5, 1, noise=0.05).changed({2: 0})


def shortly_before(federation, changed, rounds):
    """The state of a run with a first model, 20 rounds and so many after a change later."""
    state = after((federation, 20), cfl=JUDGED, state=replace(federation.state(), first=FIRST))
    return after((changed, rounds), cfl=JUDGED, state=state, done=20)


def answered(federation, state, server_round, accuracy_of):
    """The state and decisions after a round whose questions get answers of these accuracies."""
    heard = JUDGED.heard(state, federation.replies(JUDGED, state, server_round), server_round)
    replies = [
        Reply(ask, 36.0, {"accuracy": accuracy_of(ask, heard.state.model_of(ask))})
        for ask in heard.asks
    ]
    return JUDGED.heard(heard.state, replies, server_round)


@pytest.mark.parametrize(
    ("with_first", "again"), [((0.5, 0.5), True), ((0.5, 0.1), False), ((0.19, 0.19), False)]
)
def test_the_part_of_a_split_starts_anew_if_that_is_twice_as_good_for_most_of_it(with_first, again):
    odd = ALIKE.changed({4: 1, 5: 1})
    state = shortly_before(ALIKE, odd, 2)

    def accuracy(ask, model):
        if model is FIRST:
            return dict(zip(("client-4", "client-5"), with_first, strict=True))[ask.client]
        return 0.1 if ask.role is Role.OWN else 0.12

    result = answered(odd, state, 23, accuracy)
    begun = leaf(result.state, 4)
    assert begun.members == ("client-4", "client-5")
    assert (begun.model is FIRST) == again
    assert bool({*begun.members} & result.state.known.keys()) != again
    remarks = ["the run's first model" in made.reason for made in result.decisions]
    assert remarks == [False, again]  # once, on the split that was made


def test_nobody_starts_anew_if_the_split_is_refused():
    odd = ALIKE.changed({4: 1})
    state = shortly_before(ALIKE, odd, 2)
    result = answered(
        odd, state, 23, lambda ask, model: (0.1, 0.5)[model is FIRST or ask.role is Role.OWN]
    )
    assert result.state.tree.root.is_leaf
    assert result.state.tree.root.model is not FIRST


@pytest.mark.parametrize("own", [0.1, 0.3])
def test_a_member_that_moves_to_a_leaf_of_its_own_may_start_it_anew(own):
    changed = THIRD.changed({0: 2})
    state = shortly_before(THIRD, changed, 1)
    left = leaf(state, 0)
    result = answered(changed, state, 22, lambda ask, model: 0.5 if model is FIRST else own)
    begun = leaf(result.state, 0)
    assert begun.members == ("client-0",)
    assert (begun.model is FIRST) == (own < 0.25)
    remarked = {made.cluster for made in result.decisions if "first model" in made.reason}
    assert remarked == ({left.name} if own < 0.25 else set())


def test_groups_that_do_not_change_are_asked_about_no_first_model():
    state = replace(FEDERATION.state(), first=FIRST)
    for now in range(1, 21):
        heard = JUDGED.heard(state, FEDERATION.replies(JUDGED, state, now), now)
        assert not any(heard.state.model_of(ask) is FIRST for ask in heard.asks)
        replies = [FEDERATION.reply(JUDGED, heard.state, ask) for ask in heard.asks]
        state = JUDGED.heard(heard.state, replies, now).state if replies else heard.state
    assert len(state.tree.leaves) == 2
