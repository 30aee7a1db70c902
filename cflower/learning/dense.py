"""Dense models of several clients at once: their weights stacked, each step one product for all.

A client's own products, sums and steps are those of a stack with that client alone: nothing is
padded, only batches of equal size are computed together. So neither the other clients nor their
number change its bits (`tests/learning/test_dense.py`). With convolutions a stack is slower
than one client after another.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby, zip_longest
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

# Not `torch.optim.SGD`: its first step imports PyTorch's compiler, for two seconds of every
# process, and Flower starts a process for every message to a SuperNode.
from torch.optim.sgd import sgd

from cflower.data.examples import Examples
from cflower.learning.classes import Scores, measured
from cflower.learning.settings import TrainingSettings

STACK_BYTES = 3 * 10**6
"""Maximum size of a stack's weights: larger ones leave the processor's cache, as gradients and
velocities add as much each."""
ALIGNED = 4
"""The products of matrices with rows that are no multiple of so many numbers depend in their last
bits on where the matrices begin in memory (MKL)."""
LAYERS = nn.Flatten, nn.Linear, nn.ReLU, nn.Identity


def is_dense(model: nn.Module) -> bool:
    """Whether a model is a sequence of flattening, then linear layers with biases and ReLUs.

    A model with hooks is not: they would not be called.

    >>> is_dense(nn.Sequential(nn.Flatten(), nn.Linear(4, 2))), is_dense(nn.Linear(4, 2))
    (True, False)
    """
    layers = layers_of(model)
    if not is_sequence(layers) or any(map(has_hooks, (model, *layers))):
        return False
    weights = [p for x in layers if type(x) is nn.Linear for p in (x.weight, x.bias)]
    whole = all(p is not None and p.requires_grad and not p._backward_hooks for p in weights)
    # Fewer parameters than weights: a layer that occurs twice.
    return whole and len(list(model.parameters())) == len(weights) > 0


def dense_layers(model: nn.Module) -> list[str] | None:
    """The names of a dense model's linear layers; None unless a ReLU is between each two of them.

    >>> dense_layers(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    ['1', '3']
    """
    layers = [layer for layer in layers_of(model) if type(layer) in (nn.Linear, nn.ReLU)]
    kinds = [type(layer) for layer in layers]
    if not is_dense(model) or [*kinds, nn.ReLU] != [nn.Linear, nn.ReLU] * len(kinds[::2]):
        return None
    return [name for name, layer in model.named_children() if type(layer) is nn.Linear]


def is_sequence(layers: Sequence[nn.Module]) -> bool:
    """Whether layers are `LAYERS`, the first of which flattens all but the first dimension."""
    types, flattening = list(map(type, layers)), [x for x in layers if type(x) is nn.Flatten]
    flattens = all((x.start_dim, x.end_dim) == (1, -1) for x in flattening)
    return types[:1] == [nn.Flatten] and {*types} <= {*LAYERS} and flattens


def has_hooks(module: nn.Module) -> bool:
    forwards = module._forward_hooks or module._forward_pre_hooks
    return bool(forwards or module._backward_hooks or module._backward_pre_hooks)


def layers_of(model: nn.Module) -> list[nn.Module]:
    return list(model) if type(model) is nn.Sequential else []


def stack_size(model: nn.Module) -> int:
    """How many clients to train in one stack: 1 unless the model is dense, small and aligned.

    >>> stack_size(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
    95
    >>> stack_size(nn.Sequential(nn.Flatten(), nn.Linear(13, 10)))
    1
    """
    linear = [layer for layer in layers_of(model) if type(layer) is nn.Linear]
    if not is_dense(model) or any(layer.in_features % ALIGNED for layer in linear):
        return 1
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    return max(1, STACK_BYTES // num_bytes)


class Products(torch.autograd.Function):
    """A linear layer of k clients: inputs (k, n, h), weights (k, C, h), biases (k, C) -> (k, n, C).

    PyTorch's own gradient of the weights has the strides of (k, h, C), and a step with it takes as
    long as both products.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return torch.baddbmm(bias[:, None], inputs, weight.transpose(1, 2))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """The gradients of the inputs, unless these are data, the weights and the biases."""
        inputs, weight = ctx.saved_tensors
        of_inputs = torch.bmm(gradient, weight) if ctx.needs_input_grad[0] else None
        return of_inputs, torch.bmm(gradient.transpose(1, 2), inputs), gradient.sum(1)


def logits_of(model: nn.Module, weights: Sequence[Tensor], inputs: Tensor) -> Tensor:
    """Inputs (k, n, *input_shape) of k clients to logits (k, n, num_classes).

    ``weights`` are the model's parameters in order, stacked: shapes (k, *shape).
    """
    rest = iter(weights)
    for layer in layers_of(model):
        if type(layer) is nn.Linear:
            inputs = Products.apply(inputs, next(rest), next(rest))
        elif type(layer) is nn.Flatten:
            inputs = inputs.flatten(2)
        elif type(layer) is nn.ReLU:
            inputs = inputs.relu()
    return inputs


def sgd_step(settings: TrainingSettings, server_round: int) -> Callable[..., None]:
    """A step of a round: of parameters, by their gradients and velocities."""
    return partial(
        sgd,
        lr=settings.learning_rate_in(server_round),
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        foreach=False,
    )


def train_stacked(
    model: nn.Module,
    weights: Sequence[Tensor],
    parts: Sequence[Examples],
    seeds: Sequence[int],
    settings: TrainingSettings,
    *,
    server_round: int,
) -> list[float]:
    """Train the stacked weights in place, each client's on its part; the mean losses, in nats.

    As `train` describes it for one client. Neighbouring parts of one length are computed together.
    """
    device, lengths = weights[0].device, [len(part) for part in parts]
    inputs, labels = _joined(parts, device)
    first = torch.tensor([0, *accumulate(lengths)])[:-1, None]
    begins = first.to(device)
    rngs = [torch.Generator().manual_seed(seed) for seed in seeds]
    velocities = [torch.zeros_like(one) for one in weights]
    step = sgd_step(settings, server_round)
    losses, seen = torch.zeros(len(parts), device=device), [0] * len(parts)
    batches = list(stacked_batches(lengths, settings.batch_size))
    for group, _, size in batches:
        seen[group] = [before + size for before in seen[group]]
    for _ in range(settings.local_epochs):
        losses.zero_()
        orders = zip(first, lengths, rngs, strict=True)
        order = torch.cat([at + torch.randperm(n, generator=rng) for at, n, rng in orders])
        order = order.to(device)
        for group, start, size in batches:
            rows = order[begins[group] + torch.arange(start, start + size, device=device)]
            own = [one[group].requires_grad_() for one in weights]
            logits = logits_of(model, own, inputs[rows])
            each = cross_entropy(logits.flatten(0, 1), labels[rows].flatten(), reduction="none")
            loss = each.view(rows.shape).mean(1)
            gradients = torch.autograd.grad(loss.sum(), own)
            with torch.no_grad():
                step(own, list(gradients), [one[group] for one in velocities])
                losses[group] += loss * size
    return [loss / num for loss, num in zip(losses.tolist(), seen, strict=True)]


def evaluate_stacked(
    model: nn.Module, weights: Sequence[Tensor], parts: Sequence[Examples]
) -> list[Scores]:
    """The metrics of each client's weights on its part."""
    scores = list[Scores]()
    for group, size in _alike(list(map(len, parts))):
        inputs, labels = _joined(parts[group], weights[0].device)
        labels = labels.view(-1, size)
        with torch.no_grad():
            own = [one[group] for one in weights]
            logits = logits_of(model, own, inputs.view(len(labels), size, *inputs.shape[1:]))
            each = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            losses = each.view(labels.shape).sum(1).tolist()
        rows = zip(logits.cpu().numpy(), labels.cpu().numpy(), losses, strict=True)
        scores += [measured(output, right, loss / size) for output, right, loss in rows]
    return scores


def _joined(parts: Sequence[Examples], device: torch.device) -> tuple[Tensor, Tensor]:
    inputs = np.concatenate([part.inputs for part in parts]).astype(np.float32, copy=False)
    labels = np.concatenate([part.labels for part in parts]).astype(np.int64, copy=False)
    return torch.from_numpy(inputs).to(device), torch.from_numpy(labels).to(device)


def batches_of(num_examples: int, batch_size: int) -> list[tuple[int, int]]:
    """An epoch: where each batch begins, and its size, at most ``batch_size`` and nearly equal.

    A few examples in a last batch of their own would count like a whole one, and their noise can
    keep a model from learning. One example alone is left out where there are others: BatchNorm
    cannot normalise it.

    >>> batches_of(72, 32), batches_of(33, 32), batches_of(3, 2)
    ([(0, 24), (24, 24), (48, 24)], [(0, 17), (17, 16)], [(0, 2)])
    """
    count = ceil(num_examples / batch_size)
    size, more = divmod(num_examples, count)
    sizes = [size + (i < more) for i in range(count)]
    starts = accumulate(sizes, initial=0)
    least = min(2, batch_size, num_examples)
    return [(start, size) for start, size in zip(starts, sizes, strict=False) if size >= least]


def stacked_batches(lengths: Sequence[int], batch_size: int) -> Iterator[tuple[slice, int, int]]:
    """An epoch: clients whose batches are alike, where these begin, and their size.

    >>> list(stacked_batches([5, 4, 3], 2))
    [(slice(0, 3, None), 0, 2), (slice(0, 2, None), 2, 2)]
    """
    for batches in zip_longest(*(batches_of(n, batch_size) for n in lengths)):
        for group, batch in _alike(batches):
            if batch:
                yield group, *batch


def _alike(values: Iterable[Any]) -> Iterator[tuple[slice, Any]]:
    start = 0
    for value, same in groupby(values):
        end = start + len(list(same))
        yield slice(start, end), value
        start = end
