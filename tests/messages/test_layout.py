import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cflower.algorithm.projection import OutputLayer
from cflower.algorithm.weights import Weights
from cflower.errors import ConfigError
from cflower.messages.failures import BadReplyError
from cflower.messages.layout import STAY, Layout
from tests.algorithm.planted import laws


def record(**values):
    return ArrayRecord({key: Array(np.asarray(value)) for key, value in values.items()})


MODEL = {
    "conv": np.arange(6, dtype=np.float32).reshape(1, 2, 3),
    "scale": np.float32(2.5).reshape(()),
    "half": np.array([0.1, -3.0], np.float16),
    "running_mean": np.array([0.25, 0.5], np.float32),
    "num_batches_tracked": np.int64(12).reshape(()),
    "seen": np.array([True, False]),
}
LAYOUT = Layout.of(record(**MODEL))


def assert_same(first, second):
    assert list(first) == list(second)
    for key, array in first.items():
        a, b = np.asarray(array.numpy()), np.asarray(second[key].numpy())
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)


def bad(**changes):
    return record(**{**MODEL, **changes})


finite = {"allow_nan": False, "allow_infinity": False}
kinds = {
    "float16": st.floats(width=16, **finite),
    "float32": st.floats(width=32, **finite),
    "float64": st.floats(**finite),
    "int8": st.integers(-128, 127),
    "uint8": st.integers(0, 255),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**53), 2**53),
    "bool": st.booleans(),
}


@laws
@given(st.data())
def test_every_dtype_and_shape_comes_back_as_it_was(data):
    names = data.draw(st.lists(st.sampled_from(sorted(kinds)), max_size=4))
    shapes = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    values = {
        f"{i}-{kind}": data.draw(arrays(kind, shapes, elements=kinds[kind]))
        for i, kind in enumerate(names)
    }
    model = record(**values, last=np.ones(2, np.float32))
    layout = Layout.of(model)
    weights = layout.weights(model)
    assert_same(layout.record(weights), model)
    assert_same(layout.record(layout.as_sent(weights)), model)
    assert len(weights.trained) == layout.num_trained


def test_only_floating_entries_that_are_not_statistics_are_trained():
    assert {e.key for e in LAYOUT.entries if e.trained} == {"conv", "scale", "half"}
    weights = LAYOUT.weights(record(**MODEL))
    trained = np.array([0, 1, 2, 3, 4, 5, 2.5, np.float16(0.1), -3], np.float32)
    np.testing.assert_array_equal(weights.trained, trained)
    np.testing.assert_array_equal(weights.carried, [0.25, 0.5, 12, 1, 0])


def test_patterns_name_entries_that_are_not_trained():
    layout = Layout.of(record(a=np.ones(2), b=np.ones(3)), untrained=("b*",))
    assert layout.num_trained == 2


def test_single_precision_unless_an_entry_is_double():
    assert LAYOUT.dtype == np.float32
    assert Layout.of(record(a=np.ones(2, np.float16))).dtype == np.float32
    assert Layout.of(record(a=np.ones(2), b=np.ones(1, np.float32))).dtype == np.float64


@laws
@given(st.permutations(sorted(MODEL)))
def test_the_order_of_the_keys_in_a_reply_does_not_matter(keys):
    weights = LAYOUT.weights(record(**{key: MODEL[key] for key in keys}))
    expected = LAYOUT.weights(record(**MODEL))
    np.testing.assert_array_equal(weights.trained, expected.trained)
    np.testing.assert_array_equal(weights.carried, expected.carried)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (
            record(**{k: v for k, v in MODEL.items() if k not in ("conv", "scale")}),
            f"lacks the array(s) conv, scale: {STAY}",
        ),
        (bad(extra=np.ones(1)), "has the unknown array(s) extra"),
        (bad(conv=np.zeros((2, 3), np.float32)), "has conv of shape (2, 3), not (1, 2, 3)"),
        (bad(scale=np.ones(1, np.float32)), "has scale of shape (1,), not ()"),
        (bad(scale=np.int64(1)), "has scale of dtype int64, not float32"),
        (bad(num_batches_tracked=12.0), "has num_batches_tracked of dtype float64, not int64"),
        (bad(scale=np.float32(np.nan)), "has NaN or infinity in scale"),
        (bad(half=np.array([0, np.inf], np.float16)), "has NaN or infinity in half"),
        (bad(running_mean=np.float32([-np.inf, 0])), "has NaN or infinity in running_mean"),
        (bad(scale=np.float64(1e300)), "has NaN or infinity in scale"),
        (bad(half=np.float32([1e6, 0])), "has NaN or infinity in half"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused_with_the_reason(reply, problem):
    with pytest.raises(BadReplyError) as caught:
        LAYOUT.weights(reply)
    assert str(caught.value) == problem


@pytest.mark.parametrize("data", [b"", b"no array", b"\x93NUMPY\x01\x00"])
def test_bytes_that_are_no_array_are_refused(data):
    reply = record(**MODEL)
    reply["scale"] = Array(dtype="float32", shape=(), stype="numpy.ndarray", data=data)
    with pytest.raises(BadReplyError, match="array scale that cannot be read"):
        LAYOUT.weights(reply)


def test_another_precision_of_the_same_kind_is_accepted():
    weights = LAYOUT.weights(bad(scale=np.float64(0.5), num_batches_tracked=np.int32(7)))
    assert weights.trained[6] == 0.5
    assert weights.carried[2] == 7


def test_averaged_integers_stay_integers():
    first, second = (LAYOUT.weights(bad(num_batches_tracked=np.int64(n))) for n in (7, 8))
    third = LAYOUT.weights(bad(num_batches_tracked=np.int64(8)))
    mean = Weights(first.trained, (first.carried + second.carried + third.carried) / 3)
    for weights in (mean, LAYOUT.as_sent(mean)):
        sent = LAYOUT.record(weights)["num_batches_tracked"].numpy()
        assert sent.dtype == np.int64
        assert sent == 8


@laws
@given(arrays(np.float32, 9, elements=st.floats(-100, 100, width=32)), st.floats(0, 50))
def test_weights_as_sent_are_those_that_clients_read(trained, carried):
    weights = LAYOUT.as_sent(Weights(trained, np.array([carried, 0.1, carried, 0.4, 0.6])))
    again = LAYOUT.weights(LAYOUT.record(weights))
    np.testing.assert_array_equal(again.trained, weights.trained)
    np.testing.assert_array_equal(again.carried, weights.carried)
    assert weights.trained[7] == np.float16(trained[7])


def test_records_never_share_memory_with_the_model_or_each_other():
    weights = LAYOUT.weights(record(**MODEL))
    one, other = LAYOUT.arrays(weights), LAYOUT.arrays(weights)
    one["conv"][:] = 99
    one["seen"][:] = True
    assert_same(LAYOUT.record(weights), record(**MODEL))
    np.testing.assert_array_equal(other["conv"], MODEL["conv"])


def test_a_mask_names_trained_entries():
    np.testing.assert_array_equal(LAYOUT.mask("half"), [False] * 7 + [True] * 2)
    np.testing.assert_array_equal(LAYOUT.mask("sc*, ha??"), [False] * 6 + [True] * 3)
    assert LAYOUT.mask("*") is None


def test_an_empty_mask_is_refused_with_the_names_of_the_arrays():
    with pytest.raises(ConfigError, match=r"similarity-layers='fc\*'.*: conv, scale, half\."):
        LAYOUT.mask("fc*")
    with pytest.raises(ConfigError, match="names none of the trained arrays"):
        LAYOUT.mask("running_mean")


def test_a_model_with_nothing_to_train_is_refused():
    with pytest.raises(ConfigError, match=r"none of the initial model.s 1 array is trained"):
        Layout.of(record(n=np.arange(3)))


def layout_of(**shapes):
    """The layout of a model with arrays of these shapes."""
    return Layout.of(record(**{key: np.zeros(s, np.float32) for key, s in shapes.items()}))


@pytest.mark.parametrize(
    ("weight", "bias", "layer"),
    [
        ((10, 64), (10,), OutputLayer(10, 64, classes_first=True)),
        ((64, 10), (10,), OutputLayer(10, 64, classes_first=False)),
        ((10, 10), (10,), None),
        ((1, 64), (1,), None),
        ((10, 3, 3), (10,), None),
        ((64, 12), (10,), None),
    ],
)
def test_the_output_layer_is_recognised_by_its_shape(weight, bias, layer):
    layout = layout_of(first=(5, 5), weight=weight, bias=bias)
    assert layout.output_layer == layer
    assert layout.projection(0, 0, "*", output=True).output == layer
    assert layout.projection(0, 0, "*").output is None


def test_the_output_layer_is_kept_if_similarity_looks_at_it_and_it_is_short():
    layout = layout_of(first=(50, 50), weight=(10, 64), bias=(10,))
    layer = layout.output_layer
    assert layout.projection(650, 0, "*", output=True).output == layer
    assert layout.projection(649, 0, "*", output=True).output is None
    assert layout.projection(0, 0, "weight,bias", output=True).output == layer
    assert layout.projection(0, 0, "first", output=True).output is None


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("dtype", "f4," * 10**6, "has scale of dtype f4,f4"),
        ("shape", [1] * 10**6, "has scale with 1000000 axes, not ()"),
    ],
)
def test_a_long_description_of_an_array_is_refused_unread(field, value, problem):
    reply = record(**MODEL)
    setattr(reply["scale"], field, value)
    with pytest.raises(BadReplyError, match=re.escape(problem)) as refused:
        LAYOUT.weights(reply)
    assert len(str(refused.value)) < 200
