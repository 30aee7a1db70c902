import numpy as np
import pytest
from reproduction.evaluation import separation_gap
from reproduction.paper_theory import guaranteed_gamma, is_correct, noisy_gradients

from cflower.algorithm.similarity import cosine_similarity


@pytest.mark.parametrize("num_groups", [2, 3, 5, 9])
def test_theorem_1_holds_below_its_bound_and_eqs_19_and_21_meet_there(num_groups):
    gamma = guaranteed_gamma(num_groups)
    intra = 1 - 2 * gamma**2
    angle = np.pi / (num_groups - 1)
    cross = np.cos(angle) * intra + np.sin(angle) * np.sqrt(1 - intra**2)
    # Eq. 22 is eq. 19 at k = 2.
    assert cross == pytest.approx(-intra if num_groups == 2 else intra, abs=1e-12)
    groups = np.repeat(np.arange(num_groups), 3)
    for trial in range(20):
        rng = np.random.default_rng(trial)
        similarity = cosine_similarity(noisy_gradients(num_groups, 0.99 * gamma, rng))
        assert separation_gap(similarity, groups) > 0
        assert is_correct(similarity, groups)
        assert similarity[groups[:, None] == groups].min() >= 1 - 2 * (0.99 * gamma) ** 2 - 1e-9
