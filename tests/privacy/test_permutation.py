"""Laws of the secret permutation (eqs. 45 and 46)."""

import os
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cflower.errors import ConfigError
from cflower.messages.layout import UNTRAINED, is_trained
from cflower.privacy.permutation import commitment, derived_number, permuted, read_seed, shuffled
from cflower.seeding import generator

SEED, OTHER = b"the secret of these clients", b"the secret of other clients"
NAMES = st.sampled_from(("w", "b", "bn.weight", "bn.running_mean", "bn.num_batches_tracked", "h"))
DTYPES = st.sampled_from(("float32", "float64", "float16", "int64"))
SHAPES, NUMBERS = array_shapes(min_dims=0, max_dims=3, max_side=4), st.integers(-99, 99)
ARRAYS = DTYPES.flatmap(lambda dtype: arrays(dtype, SHAPES, elements=NUMBERS))
MODELS = st.dictionaries(NAMES, ARRAYS, min_size=1)


def kinds(model):
    """The keys that are treated alike."""
    alike = {}
    for key, array in model.items():
        alike.setdefault((is_trained(key, array.dtype, UNTRAINED), array.dtype), []).append(key)
    return alike.values()


def flat(model, keys):
    return np.concatenate([model[key].reshape(-1) for key in keys])


def big_model(seed=0):
    rng = generator(seed, "model")
    shapes = {"conv.weight": (16, 8, 3, 3), "conv.bias": (16,), "out.weight": (10, 400)}
    return {key: rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}


@given(MODELS)
def test_turning_back_gives_the_same_bits(model):
    back = permuted(permuted(model, SEED), SEED, back=True)
    assert list(back) == list(model)
    for key, array in model.items():
        assert back[key].dtype == array.dtype
        np.testing.assert_array_equal(back[key], array)


@given(MODELS)
def test_numbers_stay_among_arrays_that_are_treated_alike(model):
    moved = permuted(model, SEED)
    for keys in kinds(model):
        assert Counter(flat(moved, keys).tolist()) == Counter(flat(model, keys).tolist())


@given(MODELS)
def test_the_order_of_the_arrays_does_not_matter(model):
    moved = permuted(model, SEED)
    for key, array in permuted(dict(reversed(model.items())), SEED).items():
        np.testing.assert_array_equal(array, moved[key])


def test_norms_inner_products_and_means_are_preserved():
    one, other = big_model(1), big_model(2)
    p_one, p_other = permuted(one, SEED), permuted(other, SEED)
    for x, y, px, py in ((one, other, p_one, p_other), (one, one, p_one, p_one)):
        assert flat(px, one) @ flat(py, one) == pytest.approx(flat(x, one) @ flat(y, one), rel=1e-5)
    back = permuted({key: (p_one[key] + p_other[key]) / 2 for key in one}, SEED, back=True)
    for key in one:  # eq. 46, to the last bit: the same entries are added
        np.testing.assert_array_equal(back[key], (one[key] + other[key]) / 2)


def test_entries_change_their_places_and_arrays():
    model = big_model()
    moved = permuted(model, SEED)
    before, after = flat(model, model), flat(moved, model)
    # The fixed points of a random permutation are about Poisson(1): above 10 once in 10⁸.
    assert (before == after).sum() <= 10
    came_from_conv = np.isin(moved["conv.weight"], model["conv.weight"]).mean()
    assert came_from_conv == pytest.approx(model["conv.weight"].size / len(before), abs=0.05)


def test_another_seed_does_not_turn_the_permutation_back():
    model = big_model()
    wrong = permuted(permuted(model, SEED), OTHER, back=True)
    assert (flat(wrong, model) == flat(model, model)).sum() <= 10
    assert commitment(SEED) == commitment(bytes(SEED)) != commitment(OTHER)
    assert derived_number(SEED, "a") != derived_number(SEED, "b")
    assert 0 <= derived_number(SEED, "a") < 2**63


def test_the_permutation_is_the_same_on_every_machine():
    order = permuted({"w": np.arange(8, dtype=np.float32)}, SEED)["w"].tolist()
    assert order == [4, 0, 5, 1, 2, 3, 7, 6]


def test_a_shuffled_model_keeps_each_arrays_entries():
    model = big_model()
    mixed = shuffled(model, SEED)
    for key, array in model.items():
        np.testing.assert_array_equal(np.sort(mixed[key], axis=None), np.sort(array, axis=None))
        assert (mixed[key] == array).sum() <= 10


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file"), (b" \n", "holds 0 bytes"), (b"short\n", "holds 5 bytes")],
)
def test_an_unusable_seed_file_is_refused_with_the_reason(tmp_path, content, problem):
    path = tmp_path / "seed"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"seed-file = '{path}'.*{problem}"):
        read_seed(str(path))


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_seed_that_others_can_read_is_logged_once(tmp_path, mode, warned, caplog):
    (tmp_path / "seed").write_bytes(SEED)
    (tmp_path / "seed").chmod(mode)
    for _ in range(3):  # messages of a simulation
        read_seed(str(tmp_path / "seed"))
    said = caplog.text.count("can be read by other users: run `chmod 600` on it")
    assert said == warned


def test_a_seed_is_read_without_white_space_from_an_absolute_path(tmp_path):
    (tmp_path / "seed").write_bytes(b"\n" + SEED + b"\r\n")
    assert read_seed(str(tmp_path / "seed")) == SEED
    with pytest.raises(ConfigError, match="'seed', a relative path"):
        read_seed("seed")
