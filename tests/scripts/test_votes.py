from collections import Counter

import numpy as np
from families import votes
from families.votes import CASES, Case, Vote, parts_made, reported, with_liars
from records import Job


def test_a_split_is_made_for_a_gain_of_everybody_and_not_for_a_loss():
    def asked(own: float) -> list[Vote]:
        models = {"accuracy": own, "loss": 1 - own}, {"accuracy": 0.5, "loss": 0.5}
        return [Vote(f"0.{i % 2}", *models, 10) for i in range(20)]

    assert parts_made(asked(0.9)) == {"0.0": True, "0.1": True}
    assert not any(parts_made(asked(0.1)).values())


def test_gains_are_what_a_case_says():
    rng, case = np.random.default_rng(0), Case((2000, 1000), (0.1, -0.1))
    made = reported(case, rng.normal(size=(3000, 2)))
    gains = np.array([vote.own["accuracy"] - vote.common["accuracy"] for vote in made])
    assert abs(gains[:2000].mean() - 0.1) < 0.02 and abs(gains[2000:].mean() + 0.1) < 0.02
    assert Counter(vote.part for vote in made) == {"0.0": 2000, "0.1": 1000}


def test_liars_are_of_all_parts_in_turn():
    honest = [Vote(f"0.{i // 3}", {}, {}, 10) for i in range(6)]
    liars = [i for i, vote in enumerate(with_liars(honest, 2, True)) if vote.num_examples == 30]
    assert liars == [2, 5]


def test_every_case_can_be_put_to_the_vote():
    for name in CASES:
        record = votes.run_one(Job({"case": name, "seed": 0}, {"trials": 2}))
        assert record["made"] + record["refused"] == 2
