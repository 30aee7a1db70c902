import pytest
import torch

from cflower.errors import ConfigError
from cflower.learning.models import MODELS, build_model

IMAGE_MODELS = [name for name in MODELS if MODELS[name].takes in ("images", "anything")]


@pytest.mark.parametrize("name", IMAGE_MODELS)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 18, 25)])
def test_logits_for_any_image(name, shape):
    logits = build_model(name, shape, 7, seed=0)(torch.rand(2, *shape))
    assert logits.shape == (2, 7)
    assert (logits.exp().sum(dim=1) - 1).abs().min() > 1e-3  # not log-probabilities


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_least_side_is_the_least(name):
    side = MODELS[name].least_side
    if not side:
        assert build_model(name, (5,), 2, seed=0)(torch.rand(3, 5)).shape == (3, 2)
        return
    shape = (1, side, side)
    assert build_model(name, shape, 2, seed=0)(torch.rand(1, *shape)).shape == (1, 2)
    with pytest.raises(ConfigError, match=f"{side} pixels a side, but these are {side - 1}x{side}"):
        build_model(name, (1, side - 1, side), 2, seed=0)
    with pytest.raises(ConfigError, match="needs images"):
        build_model(name, (64,), 2, seed=0)


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_seed_decides_the_weights_and_leaves_the_global_generator(name):
    before = torch.get_rng_state()
    one, same, other = (build_model(name, (1, 28, 28), 10, seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "parameters"),
    [
        ("cnn", (1, 8, 8), 10, 9_930),
        ("lab-convnet", (1, 28, 28), 62, 156 + 2_416 + 256 * 62 + 62),
        ("simple-cnn", (1, 28, 28), 10, 260 + 5_020 + 320 * 50 + 50 + 510),
        ("ham-cnn", (3, 32, 32), 7, 1_216 + 12_832 + 800 * 120 + 120 + 847),
        ("mlp", (1, 28, 28), 10, 784 * 128 + 128 + 1_290),
        ("linear", (1, 28, 28), 10, 7_850),
        ("cifar-cnn", (3, 32, 32), 10, 122_570),
        ("conv1d", (6, 100), 7, 6 * 5 * 16 + 16 + 16 * 5 * 32 + 32 + 128 * 7 + 7),
    ],
)
def test_sizes_are_the_sources(name, shape, num_classes, parameters):
    model = build_model(name, shape, num_classes, seed=0)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("simpel-cnn", (1, 8, 8), r"did you mean 'simple-cnn'.*cnn, lab-convnet"),
        ("lstm", (1, 8, 8), "needs text"),
        ("conv1d", (6, 7), r"8 moments a side, but these are 7: use mlp or linear"),
        ("conv1d", (600,), r"needs time series, .*\(600,\): set series-channels"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(name, shape, words):
    with pytest.raises(ConfigError, match=words):
        build_model(name, shape, 10, seed=0)


def test_the_language_model_reads_backwards_only():
    model = build_model("lstm", (6,), 9, seed=0)
    words = torch.tensor([[1.0, 2, 3, 4, 5, 6], [1.0, 2, 3, 7, 8, 0]])
    logits = model(words)
    assert logits.shape == (2, 9, 6)
    torch.testing.assert_close(logits[0, :, :3], logits[1, :, :3])
    assert not torch.allclose(logits[0, :, 3], logits[1, :, 3])


@pytest.mark.parametrize("shape", [(6, 100), (1, 8), (3, 51)])
def test_the_model_of_time_series_takes_any_length(shape):
    assert build_model("conv1d", shape, 4, seed=0)(torch.rand(2, *shape)).shape == (2, 4)
