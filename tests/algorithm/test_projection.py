import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.projection import Projection
from cflower.algorithm.similarity import cosine_similarity
from cflower.seeding import generator
from tests.algorithm.planted import laws

UPDATES = generator(0, "updates").normal(size=(6, 5000)) + generator(0, "common").normal(size=5000)


@pytest.mark.parametrize(
    "updates",
    [
        UPDATES,
        # All weight on few entries, and weights that repeat from stretch to stretch.
        np.tri(3, 5000),
        np.cos(np.pi * np.outer([0, 1, 0.5], np.arange(5000))),
    ],
    ids=["random", "few entries", "repeating"],
)
def test_norms_and_cosines_are_preserved(updates):
    for seed in range(5):
        projection = Projection(5000, 2000, seed)
        kept = np.array([projection.keep(update) for update in updates])
        ratio = np.linalg.norm(kept, axis=1) / np.linalg.norm(updates, axis=1)
        np.testing.assert_allclose(ratio, 1, atol=0.1)
        error = cosine_similarity(kept) - cosine_similarity(updates)
        assert np.abs(error).max() < 3.5 * np.sqrt(2 / 2000)


@laws
@given(st.floats(-5, 5), st.floats(-5, 5), st.integers(0, 9))
def test_the_projection_is_linear(a, b, seed):
    projection = Projection(5000, 100, seed)
    combined = projection.keep(a * UPDATES[0] + b * UPDATES[1])
    expected = a * projection.keep(UPDATES[0]) + b * projection.keep(UPDATES[1])
    np.testing.assert_allclose(combined, expected, atol=1e-9)


def test_the_seed_determines_the_projection():
    one, same, other = (Projection(5000, 100, seed).keep(UPDATES[0]) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1


def test_short_updates_are_kept_whole():
    update = UPDATES[0]
    for length in (0, 5000, 9999):
        projection = Projection(5000, length)
        assert projection.keeps_all
        assert projection.keep(update) is update


def test_similarity_sees_only_the_masked_entries_and_the_others_are_a_second_half():
    mask, update = np.arange(5000) % 3 == 0, UPDATES[0]
    whole, short = Projection(5000, mask=mask), Projection(5000, 300, mask=mask)
    np.testing.assert_array_equal(whole.seen(whole.keep(update)), update[::3])
    kept = short.keep(update)
    assert kept.shape == (600,)
    np.testing.assert_array_equal(short.seen(kept), kept[:300])
    changed = short.keep(np.where(mask, update, 1e6))
    np.testing.assert_array_equal(changed[:300], kept[:300])
    np.testing.assert_array_equal(short.keep(np.where(mask, update, 0))[300:], np.zeros(300))
    both = Projection(5000, 300).keep(update)
    np.testing.assert_allclose(kept[:300] + kept[300:], both, atol=1e-9)


def test_precision_and_zero_are_kept():
    projection = Projection(5000, 100)
    assert projection.keep(UPDATES[0].astype(np.float32)).dtype == np.float32
    np.testing.assert_array_equal(projection.keep(np.zeros(5000)), np.zeros(100))
