"""Entries that are not trained: which one is spoiled, and that it costs the others little."""

import numpy as np
import pytest
from adversaries.attacks import Moment, Turn
from adversaries.programs import one_statistic
from adversaries.search import cost
from adversaries.statistics import ROWS
from small_models import batchnorm

from cflower.learning.models import arrays_of
from cflower.messages.arrays import record_of
from cflower.messages.layout import Layout


def test_the_least_variance_is_spoiled_and_nothing_else():
    layout = Layout.of(record_of(arrays_of(batchnorm((4,), 3))))
    back = np.zeros(layout.num_trained + layout.num_carried)
    (place,) = (e.place for e in layout.entries if e.key.endswith("running_var"))
    least = layout.num_trained + place.start + 7
    back[least] = 0.9  # the first model less the present one
    turn = Turn(back, [back], [back], Moment(1, 20, "0", 1, 19), back, layout)
    assert np.flatnonzero(one_statistic(turn)) == [least]


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", ["4 of 20", "1 in a group of 6", "1 in a group of 3", "4 of 20, input normaliser"]
)
def test_single_statistics_cost_the_others_next_to_nothing(row):
    assert max(cost(ROWS[row], seed=0)) < 2.0
