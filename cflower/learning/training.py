"""Local training and evaluation: the client's stochastic gradient descent (Algorithm 2)."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from cflower.data.examples import Examples
from cflower.learning.classes import measured
from cflower.learning.dense import batches_of, evaluate_stacked, is_dense, sgd_step, train_stacked
from cflower.learning.device import device_of
from cflower.learning.settings import TrainingSettings
from cflower.pooled import Counts, counts_of

EVALUATION_BATCH = 1000
"""Examples per step of an evaluation: changes memory and speed, not the figures."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: sums then run in one order, whatever the machine has.

    On small models a second thread would also take longer to wake than it helps.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def train(
    model: nn.Module,
    examples: Examples,
    settings: TrainingSettings,
    *,
    server_round: int,
    seed: int,
) -> dict[str, float]:
    """Train a model in place for one round; ``train-loss`` is the last epoch's, in nats.

    The model returns logits, or one number where numbers are predicted; its loss is the squared
    error then. It trains on the device it is on, and is left in training mode. The round, counted
    from 1, sets the learning rate. The seed decides the order of the examples and a model's own
    random numbers; on the CPU, the same model, examples, settings and seed give the same bits. The
    batches of an epoch are nearly equal (`batches_of`).
    """
    if examples.class_names and is_dense(model):
        weights = stack_of(model.train())
        rounds = partial(train_stacked, settings=settings, server_round=server_round)
        return {"train-loss": rounds(model, weights, [examples], [seed])[0]}
    with _own_randomness(seed, device_of(model)):
        model.train()
        inputs, labels = _tensors(examples, device_of(model))
        loss_of = cross_entropy if examples.class_names else squared_error
        rng = torch.Generator().manual_seed(seed)
        parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        velocities: list[Tensor | None] = [None] * len(parameters)
        step = sgd_step(settings, server_round)
        loss_sum, num_seen = torch.zeros((), device=inputs.device), 0
        for _ in range(settings.local_epochs):
            loss_sum, num_seen = loss_sum.zero_(), 0
            order = torch.randperm(len(examples), generator=rng).to(inputs.device)
            for start, size in batches_of(len(examples), settings.batch_size):
                batch = order[start : start + size]
                loss = loss_of(model(inputs[batch]), labels[batch])
                gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
                with torch.no_grad():
                    step(parameters, list(gradients), velocities)
                loss_sum += loss.detach() * size
                num_seen += size
    return {"train-loss": loss_sum.item() / num_seen}


@one_thread()
def evaluate(model: nn.Module, examples: Examples) -> dict[str, float]:
    """How good a model is on held-out examples.

    ``accuracy`` is the share of right predictions, in [0, 1], ``f1`` their macro F1 (`macro_f1`),
    ``auc`` the area under the ROC curve of two classes, ``loss`` the mean cross entropy in nats;
    sequences also have ``perplexity``, exp(loss), the paper's measure. Where numbers are predicted,
    ``rmse`` is the root of the mean squared error and ``mae`` the mean absolute error, in their
    unit. The model returns logits, or one number. It computes on the device it is on, and is left
    in evaluation mode.
    """
    if examples.class_names and is_dense(model):
        weights = stack_of(model.eval())
        return evaluate_stacked(model, weights, [examples])[0]
    logits, labels = _predictions(model, examples)
    if not examples.class_names:
        error = (logits[:, 0] - labels).double()
        return {"rmse": float(error.square().mean().sqrt()), "mae": float(error.abs().mean())}
    loss = float(cross_entropy(logits, labels, reduction="sum")) / len(labels)
    metrics = measured(logits.cpu().numpy(), labels.cpu().numpy(), loss)
    return metrics | perplexity_of(loss, examples)


@one_thread()
def brier_score(model: nn.Module, examples: Examples) -> float:
    """Σ_k (p_k − [k is right])² over the classes k, the mean over held-out examples, in [0, 2].

    Accuracy on few examples moves in steps, and a few confident errors make most of the cross
    entropy. This moves with every example, and none counts for more than 2.
    """
    logits, labels = _predictions(model, examples)
    chances = logits.softmax(dim=1)
    right = one_hot(labels, chances.shape[1])
    return float((chances - right).square().sum(dim=1).mean())


def counts_on(model: nn.Module, examples: Examples) -> Counts:
    """What `cflower.pooled` adds up over clients; nothing of sequences and of numbers."""
    if examples.labels.ndim > 1 or not examples.class_names:
        return {}
    return counts_of(predict(model, examples), examples.labels)


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean squared error of outputs (batch, 1) as predictions of numbers (batch,)."""
    return mse_loss(outputs[:, 0], labels)


def perplexity_of(loss: float, examples: Examples) -> dict[str, float]:
    """Of sequences ``perplexity``, exp(loss); nothing of other examples."""
    return {} if examples.labels.ndim == 1 else {"perplexity": math.exp(min(loss, 700))}


@one_thread()
def predict(model: nn.Module, examples: Examples) -> NDArray[np.float32]:
    """The logits of held-out examples, shape (n, num_classes); otherwise as `evaluate`.

    Of sequences they have a row for every place, (n * length, num_classes), in the order of
    ``labels.ravel()``.
    """
    return _predictions(model, examples)[0].cpu().numpy()


def _predictions(model: nn.Module, examples: Examples) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        model.eval()
        inputs, labels = _tensors(examples, device_of(model))
        starts = range(0, len(examples), EVALUATION_BATCH)
        logits = torch.cat([model(inputs[i : i + EVALUATION_BATCH]) for i in starts])
    # shape: (n, num_classes) or (n, num_classes, length)
    return logits.movedim(1, -1).reshape(-1, logits.shape[1]), labels.reshape(-1)


def stack_of(model: nn.Module) -> list[Tensor]:
    """A stack of this one model: views of its parameters, shapes (1, *shape)."""
    return [parameter.detach()[None] for parameter in model.parameters()]


_moved = WeakKeyDictionary[Examples, tuple[Tensor, Tensor]]()
"""Examples on another device than the CPU, for as long as they are kept in memory."""


def _tensors(examples: Examples, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs and labels on the device: one copy for all batches; on a GPU, for all rounds."""
    there = _moved.get(examples)
    if there is None or there[0].device != device:
        inputs = torch.tensor(examples.inputs, dtype=torch.float32, device=device)
        kind = torch.int64 if examples.class_names else torch.float32
        there = inputs, torch.tensor(examples.labels, dtype=kind, device=device)
        if device.type != "cpu":
            _moved[examples] = there
    return there


@contextmanager
def _own_randomness(seed: int, device: torch.device) -> Iterator[None]:
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if device.type in ("cuda", "mps"):
            torch.manual_seed(seed)  # of all devices
        else:
            torch.default_generator.manual_seed(seed)
        yield
