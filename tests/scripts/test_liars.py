import numpy as np
import pytest
from adversaries.attacks import LIES, Measured
from families.liars import HONEST, config_of, liars_among, run_one
from records import Job


def test_what_liars_say():
    def said(lie: str, accuracy: float, loss: float) -> tuple[float, float]:
        return LIES[lie].report(Measured(accuracy, loss, np.random.default_rng(0)))

    assert said("opposite", 0.75, 0.5) == (0.25, 2.0)
    assert said("contradict", 0.9, 0.3) == (0.0, 0.0)
    assert said("contradict", 0.5, 3.0) == (1.0, 100.0)
    assert said("claims", 0.9, 0.3) == (0.0, 900.0)
    assert said("claims", 0.5, 3.0) == (1.0, 0.001)
    accuracy, loss = said("random", 0.9, 0.3)
    assert 0 <= accuracy <= 1 and 0 <= loss <= 3
    assert LIES["claims"].claim == LIES["attack"].claim == 3


def test_liars_are_of_all_groups_in_turn():
    assert liars_among([0] * 10 + [1] * 10, 4) == [19, 9, 18, 8]


@pytest.mark.slow
@pytest.mark.parametrize("lie", [HONEST, "away", "opposite", "attack"])
def test_the_honest_clients_are_judged_whatever_the_others_say(lie):
    config = config_of("digits", 4, 0, {})
    record = run_one(Job({}, {**config, "liars": 2, "lie": lie}))
    assert 0 < record["leaf"] <= 1 and 0 < record["accuracy"] <= 1
