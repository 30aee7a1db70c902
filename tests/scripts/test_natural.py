"""The experiments with natural groups: what they make of a run, without training any."""

import numpy as np
import pytest
import torch
from reproduction.languages import PAGES, babble, five_characters, joined, with_clients
from scipy.cluster.hierarchy import fcluster


def test_every_client_has_ten_pages_of_one_language():
    dealt = with_clients(babble(), 2)
    sizes = dealt.groupby("client").agg({"language": "nunique", "text": "size"})
    assert len(sizes) == 8
    assert set(sizes["language"]) == {1}
    assert set(sizes["text"]) == {PAGES}
    assert with_clients(babble(), 1)["client"].nunique() == 4


def test_the_model_of_five_characters_sees_no_sixth():
    model = five_characters((8,), 9)
    first = torch.tensor([[1.0, 2, 3, 4, 5, 6, 7, 8]])
    other = first.clone()
    other[0, 2] = 0
    changed = (model(first) - model(other)).abs().amax(dim=(0, 1)) > 1e-6
    assert changed.tolist() == [False, False, True, True, True, True, True, False]


def test_near_languages_are_joined_first():
    similarity = np.array([[1.0, 0.1, 0.8], [0.1, 1.0, 0.0], [0.8, 0.0, 1.0]])
    parts = fcluster(joined(similarity), 2, "maxclust")
    assert parts[0] == parts[2] != parts[1]


def test_clients_are_counted_over_seeds_and_averaged_for_the_interval():
    from reproduction.wrists import compared

    def summary(*accuracies: float) -> dict[str, dict[str, dict[str, float]]]:
        return {"clients": {str(i): {"accuracy": a} for i, a in enumerate(accuracies)}}

    comparison = compared(
        [summary(0.9, 0.8), summary(0.9, 0.8)], [summary(0.8, 0.8), summary(0.8, 0.9)]
    )
    assert (comparison["better"], comparison["equal"], comparison["worse"]) == (2, 1, 1)
    assert comparison["mean"] == pytest.approx(0.025)
    low, high = comparison["interval"]
    # Student's t for two clients: 0.1 and -0.05, 12.706 standard errors of 0.075 either way.
    assert (low, high) == pytest.approx((0.025 - 12.706 * 0.075, 0.025 + 12.706 * 0.075), abs=1e-3)
