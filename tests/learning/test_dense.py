"""Clients trained and evaluated together have the same bits as one by one."""

import numpy as np
import pytest
import torch
from torch import nn

from cflower.data.examples import Examples
from cflower.learning.dense import Products, evaluate_stacked, is_dense, train_stacked
from cflower.learning.models import build_model
from cflower.learning.settings import TrainingSettings
from cflower.learning.training import evaluate, one_thread, train

CLASSES = tuple("abcdefghij")


def parts_of(lengths, shape, rng):
    for n in lengths:
        inputs = rng.random((n, *shape), dtype=np.float32)
        yield Examples(inputs, rng.integers(10, size=n), CLASSES)


@pytest.mark.parametrize("name", ["mlp", "linear"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (12,)])
@pytest.mark.parametrize("lengths", [[14] * 7, [15] * 3 + [14] * 4, [70, 65, 64, 33, 33, 32, 2, 1]])
def test_clients_trained_together_have_the_bits_of_each_alone(name, shape, lengths):
    settings = TrainingSettings(weight_decay=0.01)
    parts = list(parts_of(lengths, shape, np.random.default_rng(0)))
    models = [build_model(name, shape, 10, seed) for seed in range(len(lengths))]
    weights = zip(*(model.parameters() for model in models), strict=True)
    stacks = [torch.stack([one.detach() for one in same]) for same in weights]
    seeds = range(100, 100 + len(lengths))
    with one_thread():
        measured = evaluate_stacked(models[0], stacks, parts)
        losses = train_stacked(models[0], stacks, parts, seeds, settings, server_round=2)
    for i, (model, part) in enumerate(zip(models, parts, strict=True)):
        assert evaluate(model, part) == measured[i]
        alone = train(model, part, settings, server_round=2, seed=seeds[i])
        assert alone == {"train-loss": losses[i]}
        for parameter, stack in zip(model.parameters(), stacks, strict=True):
            assert torch.equal(parameter, stack[i])


def test_a_dense_model_trains_as_pytorch_alone_would_within_rounding():
    (part,) = parts_of([65], (1, 8, 8), np.random.default_rng(0))
    ours, theirs = (build_model("mlp", (1, 8, 8), 10, 0) for _ in range(2))
    settings = TrainingSettings(local_epochs=2)
    train(ours, part, settings, server_round=1, seed=5)
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1, 0.9)
    rng = torch.Generator().manual_seed(5)
    for _ in range(2):
        for batch in torch.randperm(65, generator=rng).split([22, 22, 21]):
            optimizer.zero_grad()
            logits = theirs(torch.tensor(part.inputs)[batch])
            nn.functional.cross_entropy(logits, torch.tensor(part.labels)[batch]).backward()
            optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.detach().cpu(), other.detach())


def test_the_products_of_several_clients_have_the_gradients_of_pytorch_in_the_weights_layout():
    sizes = (3, 5, 4), (3, 2, 4), (3, 2)  # three clients, five rows, from four numbers to two
    inputs, weight, bias = (torch.rand(s, dtype=torch.float64, requires_grad=True) for s in sizes)
    assert torch.autograd.gradcheck(Products.apply, (inputs, weight, bias))
    outputs = Products.apply(inputs.detach(), weight, bias)
    torch.testing.assert_close(outputs[1], nn.functional.linear(inputs[1], weight[1], bias[1]))
    outputs.sum().backward()
    assert inputs.grad is None
    assert weight.grad.stride() == weight.stride()


def test_only_plain_sequences_count_as_dense():
    linear = nn.Linear(4, 4)
    assert is_dense(nn.Sequential(nn.Flatten(), linear, nn.ReLU(), nn.Linear(4, 2)))
    assert not is_dense(nn.Sequential(nn.Flatten(), linear, nn.Dropout(), nn.Linear(4, 2)))
    assert not is_dense(nn.Sequential(nn.Flatten(), linear, linear))
    assert not is_dense(nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False)))
    assert not is_dense(build_model("cnn", (1, 8, 8), 10, 0))
    hooked = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    hooked[1].register_forward_hook(lambda *_: None)
    assert not is_dense(hooked)
    for register in ("register_full_backward_hook", "register_full_backward_pre_hook"):
        hooked = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        getattr(hooked[1], register)(print)
        assert not is_dense(hooked)
    hooked = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    hooked[1].weight.register_hook(print)
    assert not is_dense(hooked)
