"""The mean updates of one round: the same for a leaf, however its members are grouped."""

import numpy as np
import pytest

from cflower.algorithm.aggregation import MEDIAN, Average, TrimmedMean
from cflower.algorithm.means import RoundMeans
from cflower.algorithm.weights import Weights

CLIENTS = tuple("abcdefg")


def update(client):
    """An update of three trained entries, and one that is not trained."""
    number = CLIENTS.index(client) + 1.0
    return Weights(np.array([number, -number, number**2]), np.array([number / 7]))


def means_of(group_of, rule, weight=lambda client: 1.0 + CLIENTS.index(client)):
    sums = RoundMeans(rule.empty, group_of)
    for client in CLIENTS:
        sums.add("0", client, update(client), weight(client), 1.0)
    return sums.means()["0"]


@pytest.mark.parametrize("rule", [Average(), TrimmedMean(), TrimmedMean(MEDIAN)])
def test_the_mean_of_a_leaf_does_not_depend_on_the_groups_of_its_members(rule):
    groups = {client: i % 3 for i, client in enumerate(CLIENTS[:-1])}  # the last one is in none
    alone, grouped = means_of({}, rule), means_of(groups, rule)
    for one, other in zip(alone.whole, grouped.whole, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-12)
    assert (alone.groups, set(grouped.groups)) == ({}, {0, 1, 2})


def test_a_group_has_the_mean_of_its_own_members_and_strangers_that_of_the_leaf():
    mean = means_of({"a": 0, "b": 0, "c": 1, "d": 1}, Average(), lambda client: 1.0)
    np.testing.assert_allclose(mean.of("ab").trained, [1.5, -1.5, 2.5])
    np.testing.assert_allclose(mean.of("dcb").trained, [3.5, -3.5, 12.5])  # most are in group 1
    assert mean.of("fg") is mean.whole
