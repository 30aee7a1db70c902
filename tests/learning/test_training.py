from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss
from torch import nn

from cflower.data.client_data import load_client_data
from cflower.data.examples import Examples
from cflower.data.settings import DataSettings
from cflower.errors import ConfigError
from cflower.learning.dense import batches_of
from cflower.learning.models import build_model
from cflower.learning.settings import TrainingSettings
from cflower.learning.training import brier_score, evaluate, train
from tests.command import in_new_process


def trained(seed):
    data = load_client_data(DataSettings(shift="none"), 1, 10)
    model = build_model("cnn", data.train.input_shape, 10, seed=0)
    train(model, data.train, TrainingSettings(), server_round=1, seed=seed)
    return crc32(b"".join(p.detach().numpy().tobytes() for p in model.cpu().parameters()))


def rows(num):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(num, 4)).astype(np.float32)
    return Examples(inputs, (inputs[:, 0] > 0).astype(np.int64), ("no", "yes"))


def weights_after(settings, num, server_round=1):
    model = build_model("mlp", (4,), 2, seed=0)
    train(model, rows(num), settings, server_round=server_round, seed=0)
    return nn.utils.parameters_to_vector(model.parameters()).detach().cpu()


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="bits are promised on the CPU")
def test_training_gives_the_same_bits_in_another_process():
    before, state = torch.get_num_threads(), torch.get_rng_state()
    here = trained(7)
    assert here != trained(8)
    assert before == torch.get_num_threads()
    assert torch.equal(state, torch.get_rng_state())
    code = f"""
import torch
from sklearn.metrics import brier_score_loss
from sklearn.metrics import brier_score_loss
from tests.learning.test_training import trained
torch.set_num_threads({3 - min(before, 2)})
print(trained(7))
"""
    assert in_new_process(code) == str(here)


def test_learning_rate_decays_by_round():
    decaying = TrainingSettings(learning_rate=0.2, learning_rate_decay=0.5, local_epochs=1)
    constant = replace(decaying, learning_rate=0.05, learning_rate_decay=1.0)
    assert torch.equal(weights_after(decaying, 40, server_round=3), weights_after(constant, 40))
    assert not torch.equal(weights_after(decaying, 40), weights_after(constant, 40))


def test_one_full_batch_is_one_gradient_step():
    settings = TrainingSettings(local_epochs=1, batch_size=50, learning_rate=0.3)
    model = build_model("mlp", (4,), 2, seed=0)
    data = rows(50)
    start = nn.utils.parameters_to_vector(model.parameters()).detach()
    loss = nn.functional.cross_entropy(model(torch.tensor(data.inputs)), torch.tensor(data.labels))
    gradient = nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))
    torch.testing.assert_close(weights_after(settings, 50), start - 0.3 * gradient)


@given(st.integers(1, 300), st.integers(1, 64))
def test_the_batches_of_an_epoch_are_nearly_equal(num, batch_size):
    batches = batches_of(num, batch_size)
    starts, sizes = zip(*batches, strict=True)
    assert list(starts) == [sum(sizes[:i]) for i in range(len(sizes))]
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(2, num, batch_size)
    assert num - sum(sizes) == (batch_size == 2 and num % 2 and num > 1)


def test_no_batch_of_a_model_with_batch_norm_has_one_example():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    train(model, rows(33), TrainingSettings(local_epochs=2), server_round=1, seed=0)
    assert int(model[1].num_batches_tracked) == 4
    train(model, rows(3), TrainingSettings(local_epochs=2, batch_size=2), server_round=1, seed=0)
    assert int(model[1].num_batches_tracked) == 6


def test_evaluation_counts_over_all_batches_and_changes_nothing():
    data = rows(2_500)
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    metrics = evaluate(model, data)
    logits = model(torch.tensor(data.inputs, device=next(model.parameters()).device)).cpu()
    labels = torch.tensor(data.labels)
    assert metrics["accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert metrics["loss"] == pytest.approx(nn.functional.cross_entropy(logits, labels).item())
    assert all(torch.equal(value.cpu(), before[key]) for key, value in model.state_dict().items())


def test_the_brier_score_is_that_of_scikit_learn_and_of_certain_models_twice_the_error():
    model, examples = build_model("mlp", (4,), 2, seed=0), rows(50)
    with torch.no_grad():
        chances = model(torch.from_numpy(examples.inputs)).softmax(1).numpy()
        expected = 2 * brier_score_loss(examples.labels, chances[:, 1])  # it counts one class only
        assert brier_score(model, examples) == pytest.approx(expected, rel=1e-5)
        for parameter in model.parameters():
            parameter.mul_(1e4)
    error = 1 - evaluate(model, examples)["accuracy"]
    assert brier_score(model, examples) == pytest.approx(2 * error, abs=1e-6)


def test_settings_out_of_range():
    with pytest.raises(ConfigError, match=r"momentum=1\.0, but expected a number >= 0 and < 1"):
        TrainingSettings(momentum=1.0)


def sentences():
    """Every word is followed by the next larger one, modulo 5."""
    inputs = (np.arange(40)[:, None] + np.arange(6)) % 5
    return Examples(inputs.astype(np.float32), (inputs + 1) % 5, tuple("abcde"))


def test_the_language_model_learns_which_word_follows():
    model = build_model("lstm", (6,), 5, seed=0)
    before = evaluate(model, sentences())
    assert before["perplexity"] == pytest.approx(np.exp(before["loss"]))
    assert before["perplexity"] == pytest.approx(5, rel=0.1)
    settings = TrainingSettings(local_epochs=40, batch_size=8, learning_rate=0.5)
    train(model, sentences(), settings, server_round=1, seed=0)
    after = evaluate(model, sentences())
    assert after["accuracy"] == 1
    assert after["perplexity"] < 1.2
