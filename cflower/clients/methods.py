"""What clients do by the methods that change only their own training, and what serves them then.

- ``fedprox``: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
  Networks", MLSys 2020, arXiv 1812.06127. A client's training is pulled to the model that it
  received, by μ/2 ‖w - w_t‖².
- ``scaffold``: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled
  Averaging for Federated Learning", ICML 2020, arXiv 1910.06378 (Algorithm 1, option II). A client
  adds c - c_i to every gradient. c_i, which it keeps, is then the mean gradient of its training,
  c_i - c + (x - y_i)/(K η); the server has c, the mean of the c_i (`cflower.strategy.scaffold`).
- ``ditto``: Li, Hu, Beirami, Smith, "Ditto: Fair and Robust Federated Learning Through
  Personalization", ICML 2021, arXiv 2012.04221 (Algorithm 1). Beside the common model w each client
  trains a model v of its own, pulled to the w that it received, by λ/2 ‖v - w‖². It keeps v, which
  serves it.
- ``fedper``: Arivazhagan, Aggarwal, Singh, Choudhary, "Federated Learning with Personalization
  Layers", arXiv 1912.00818. The last layer with weights is each client's own and is never sent.
- ``fedrep``: Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for
  Personalized Federated Learning", ICML 2021, arXiv 2102.07078 (Algorithm 1). As ``fedper``, but a
  client trains first this layer alone and then the others alone, and for each evaluation its layer
  once more, in `LAST_EPOCHS`.
- ``fedbn``: Li, Jiang, Zhang, Kamp, Dou, "FedBN: Federated Learning on Non-IID Features via Local
  Batch Normalization", ICLR 2021, arXiv 2102.07623. So are the normalisation layers.

Differences: every training has the run's epochs, momentum and learning rate. Ditto's w is averaged
by numbers of examples, its λ is one for all clients and rounds, and v begins as the first model
that the client receives. With momentum β, SCAFFOLD's K is the sum of the weights that the K steps
give to the gradients, Σ (1 - β^j)/(1 - β) for j = 1 to K (Wang et al., arXiv 2007.07481). Of these
methods the server knows SCAFFOLD only: arrays that most clients leave out of their replies stay on
the clients.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context
from numpy.typing import NDArray
from torch import Tensor, nn

from cflower.errors import CFlowerError
from cflower.learning.dense import batches_of
from cflower.learning.models import arrays_of
from cflower.learning.settings import TrainingSettings
from cflower.messages.arrays import record_of, values_of
from cflower.messages.client_names import CONTROL

OWN_ARRAYS = "own-model"
"""The key of a client's own arrays in the state of its context."""
LAST_EPOCHS = 10
"""As the authors of FedRep have it (lgcollins/FedRep, commit d82e629)."""
NORMALISING = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


def serve(method: str, model: nn.Module, context: Context) -> None:
    """Put what is the client's own into a model that it received."""
    own = context.state.get(OWN_ARRAYS)
    if method and isinstance(own, ArrayRecord):
        model.load_state_dict(tensors_of(own), strict=False)


def tensors_of(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """The values as tensors; of copies, because PyTorch warns of tensors on read-only bytes."""
    return {key: torch.from_numpy(values_of(array).copy()) for key, array in arrays.items()}


def keep_own(model: nn.Module, keys: Collection[str], context: Context) -> None:
    arrays = arrays_of(model)
    context.state[OWN_ARRAYS] = record_of({key: arrays[key] for key in arrays if key in keys})


def local_keys(method: str, model: nn.Module) -> frozenset[str]:
    """The keys of the arrays that a method never sends; `CFlowerError` if a model has none."""
    layers = [(n, m) for n, m in model.named_modules() if [*m.parameters(recurse=False)]]
    match method:
        case "fedper" | "fedrep":
            what, layers = "the last layer", layers[-1:]
        case "fedbn":
            what = "normalisation layers, such as BatchNorm,"
            layers = [(name, layer) for name, layer in layers if isinstance(layer, NORMALISING)]
        case _:
            return frozenset()
    keys = frozenset(f"{name}.{key}" for name, layer in layers for key in layer.state_dict())
    if not keys or keys == model.state_dict().keys():
        raise CFlowerError(
            f"The method {method!r} keeps {what} at each client and averages the others, but the "
            f"model has {'no others' if keys else 'none'}: choose another model or method."
        )
    return keys


@contextmanager
def pulled(model: nn.Module, towards: nn.Module, strength: float) -> Iterator[None]:
    """Within, gradients have that of strength/2 ‖model - towards‖²; 0 changes nothing."""

    def pull(goal: Tensor, here: Tensor) -> Tensor:
        return strength * (here.detach() - goal)

    # Hooks keep a dense model from its faster training.
    goals = towards.parameters() if strength else ()
    pulls = [partial(pull, goal.detach().clone()) for goal in goals]
    with adding(model, pulls):
        yield


@contextmanager
def adding(model: nn.Module, terms: Sequence[Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Within, each parameter's gradient has a term more, which is computed of the parameter.

    Weights that the model does not train have no gradient.
    """
    hooks = []
    for here, term in zip(model.parameters(), terms, strict=False):
        if not here.requires_grad:
            continue

        def add(
            gradient: Tensor, here: Tensor = here, term: Callable[[Tensor], Tensor] = term
        ) -> Tensor:
            return gradient + term(here)

        hooks.append(here.register_hook(add))  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def only_training(model: nn.Module, keys: Collection[str]) -> Iterator[None]:
    """Within, of these parameters those that the model trains are trained, and no others."""
    others = [
        parameter
        for key, parameter in model.named_parameters()
        if parameter.requires_grad and key not in keys
    ]
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)


def controlled(
    model: nn.Module,
    sent: ArrayRecord,
    context: Context,
    run: Callable[[nn.Module], dict[str, float]],
    length: float,
) -> tuple[dict[str, float], dict[str, NDArray[Any]]]:
    """Train by SCAFFOLD and keep the new c_i; the losses and by how much c_i changes.

    ``sent`` is c, ``length`` K η (`length_of`).
    """
    kept = context.state.get(CONTROL)
    before = {key: weight.detach().clone() for key, weight in model.named_parameters()}
    common = {key: torch.from_numpy(values_of(sent[key]).copy()).to(w) for key, w in before.items()}
    own = {key: torch.zeros_like(weight) for key, weight in before.items()}
    if isinstance(kept, ArrayRecord):
        own = {key: torch.from_numpy(values_of(kept[key]).copy()).to(w) for key, w in own.items()}

    def correction(key: str, here: Tensor) -> Tensor:
        return common[key] - own[key]

    with adding(model, [partial(correction, key) for key in before]):
        losses = run(model)
    with torch.no_grad():
        change = {
            key: (before[key] - weight) / length - common[key]
            for key, weight in model.named_parameters()
        }
    after = {key: (own[key] + change[key]).cpu().numpy() for key in change}
    context.state[CONTROL] = record_of(after)
    return losses, {key: values.cpu().numpy() for key, values in change.items()}


def length_of(settings: TrainingSettings, num_examples: int, server_round: int) -> float:
    """K η of a training: by how much it moves the model for each unit of its mean gradient.

    >>> length_of(TrainingSettings(learning_rate=0.1, momentum=0.0), 64, server_round=1)
    0.6000000000000001
    """
    steps = settings.local_epochs * len(batches_of(num_examples, settings.batch_size))
    weights = [(1 - settings.momentum**j) / (1 - settings.momentum) for j in range(1, steps + 1)]
    return settings.learning_rate_in(server_round) * sum(weights)
