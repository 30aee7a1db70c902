"""What an observer's answer means."""

import numpy as np
import pytest

from cflower import NeverSplit, Observer
from tests.strategy.quadratics import Quadratics, initial_arrays, strategy_of


class Answers(Observer):
    """Gives the same answer after every round."""

    def __init__(self, answer):
        self.answer, self.rounds = answer, 0

    def on_round(self, report):
        self.rounds += 1
        return self.answer


@pytest.mark.parametrize(
    ("answer", "rounds"),
    [(True, 1), (np.True_, 1), (np.mean([0.8, 1.0]) > 0.5, 1), (np.array(True), 1)]
    + [(answer, 3) for answer in (None, False, np.False_, 1, 0.5, "no", np.ones(2), [True])],
)
def test_only_true_ends_a_run(answer, rounds):
    observer = Answers(answer)
    strategy = strategy_of(criterion=NeverSplit(), observers=[observer])
    strategy.start(Quadratics((0, 0)).grid(), initial_arrays(), num_rounds=3)
    assert observer.rounds == rounds
