import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cflower.algorithm.difference import Difference
from cflower.algorithm.projection import Projection
from cflower.algorithm.similarity import cosine_similarity
from cflower.seeding import generator
from tests.algorithm.planted import laws

UPDATES = generator(0, "updates").normal(size=(6, 5000)) + generator(0, "common").normal(size=5000)


def test_norms_and_cosines_are_preserved():
    projection = Projection(5000, 2000)
    kept = np.array([projection.keep(update) for update in UPDATES])
    ratio = np.linalg.norm(kept, axis=1) / np.linalg.norm(UPDATES, axis=1)
    np.testing.assert_allclose(ratio, 1, atol=0.1)
    error = cosine_similarity(kept) - cosine_similarity(UPDATES)
    assert np.abs(error).max() < 3 * np.sqrt(2 / 2000)


@pytest.mark.slow
@laws
@given(st.floats(-1, 1), st.integers(2, 4), st.integers(0, 5))
def test_the_error_of_a_cosine_is_as_small_as_stated(cosine, log_entries, which):
    """Over 400 projections: unbiased, with a standard deviation of at most sqrt(2 / k)."""
    length, repeats = 64, 400
    rng = generator(which, "pair", log_entries)
    one, other = np.linalg.qr(rng.normal(size=(10**log_entries, 2)))[0].T
    if which % 2:  # all weight on few entries is the hardest case
        one, other = np.eye(100)[0] + np.eye(100)[1], np.eye(100)[0] - np.eye(100)[1]
        one, other = one / np.sqrt(2), other / np.sqrt(2)
    elif which % 3 == 2:  # and weights that repeat from stretch to stretch look alike by chance
        one = np.ones(len(one)) / np.sqrt(len(one))
        other = np.cos(np.pi * np.arange(len(one))) / np.sqrt(len(one))
    other = cosine * one + np.sqrt(1 - cosine**2) * other
    errors = []
    for seed in range(repeats):
        projection = Projection(len(one), length, seed)
        kept = np.array([projection.keep(one), projection.keep(other)])
        errors.append(cosine_similarity(kept)[0, 1] - cosine)
    bound = np.sqrt(2 / length)
    assert np.std(errors) < 1.15 * bound  # 400 of them tell it within a tenth or so
    assert abs(np.mean(errors)) < 4 * bound / np.sqrt(repeats) + 1 / length


@laws
@given(st.floats(-5, 5), st.floats(-5, 5), st.integers(0, 9))
def test_the_projection_is_linear(a, b, seed):
    projection = Projection(5000, 100, seed)
    combined = projection.keep(a * UPDATES[0] + b * UPDATES[1])
    expected = a * projection.keep(UPDATES[0]) + b * projection.keep(UPDATES[1])
    np.testing.assert_allclose(combined, expected, atol=1e-9)


def test_the_same_seed_projects_alike_and_another_does_not():
    one, same, other = (Projection(5000, 100, seed).keep(UPDATES[0]) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1


def test_what_is_short_enough_is_kept_as_it_is():
    update = UPDATES[0]
    for length in (0, 5000, 9999):
        projection = Projection(5000, length)
        assert projection.keeps_all
        assert projection.keep(update) is update


def test_only_masked_entries_are_seen():
    mask = np.arange(5000) % 2 == 0
    whole = Projection(5000, mask=mask)
    np.testing.assert_array_equal(whole.seen(whole.keep(UPDATES[0])), UPDATES[0][::2])
    changed = np.where(mask, UPDATES[0], 1e6)
    short = Projection(5000, 300, mask=mask)
    assert short.keep(changed).shape == (600,)  # the seen half, then the others
    seen = short.seen(short.keep(UPDATES[0]))
    assert seen.shape == (300,)
    np.testing.assert_array_equal(short.seen(short.keep(changed)), seen)


def test_precision_and_zero_are_kept():
    projection = Projection(5000, 100)
    assert projection.keep(UPDATES[0].astype(np.float32)).dtype == np.float32
    np.testing.assert_array_equal(projection.keep(np.zeros(5000)), np.zeros(100))


def test_what_similarity_does_not_see_is_kept_beside_it():
    mask = np.arange(5000) % 3 == 0
    kept = Projection(5000, 300, mask=mask).keep(UPDATES[0])
    whole = Projection(5000, 300).keep(UPDATES[0])
    np.testing.assert_allclose(kept[:300] + kept[300:], whole, atol=1e-9)
    seen = Projection(5000, 300, mask=mask).keep(np.where(mask, UPDATES[0], 0))
    np.testing.assert_array_equal(seen[300:], np.zeros(300))
    np.testing.assert_array_equal(seen[:300], kept[:300])


def differences(number: int, size: int) -> tuple[list[Difference], list[np.ndarray]]:
    """Updates of one model that came in arrays of odd sizes, and the same as vectors."""
    rng = generator(0, "differences")
    origin = rng.normal(size=size).astype(np.float32)
    models = [(origin + rng.normal(size=size) / 100).astype(np.float32) for _ in range(number)]
    ends = [7, size // 3, size // 2]
    updates = [Difference(np.split(model, ends), origin) for model in models]
    return updates, [model - origin for model in models]


@pytest.mark.parametrize("length", [100, 16_384, 100_000])
def test_updates_looked_at_together_give_what_each_gives_alone(length: int) -> None:
    updates, vectors = differences(3, 300_001)
    projection = Projection(300_001, length)
    weights = [1.0, 20.0, 0.5]
    for (norm, kept), vector in zip(projection.measure(updates, weights), vectors, strict=True):
        np.testing.assert_array_equal(kept, projection.keep(vector))
        np.testing.assert_allclose(norm, np.linalg.norm(vector.astype(float)), rtol=1e-5)
    assert updates[0].presumed is not None
    expected = np.einsum("i,ij->j", weights, vectors)
    np.testing.assert_allclose(updates[0].presumed.total, expected, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_what_is_not_finite_shows_in_the_norm_of_that_update_only(bad: float) -> None:
    (good, _), _ = differences(2, 300_001)
    broken = Difference([np.full(300_001, bad, np.float32)], np.zeros(300_001, np.float32))
    found = Projection(300_001, 1000).measure([good, broken], [1.0, 1.0])
    assert [bool(np.isfinite(norm)) for norm, _ in found] == [True, False]
