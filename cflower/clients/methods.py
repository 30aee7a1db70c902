"""What clients do by the methods that change only their own training, and what serves them then.

- ``fedprox``: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous
  Networks", MLSys 2020, arXiv 1812.06127. A client's training is pulled to the model that it
  received, by μ/2 ‖w - w_t‖².
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
that the client receives. The server does not know these methods: arrays that most clients leave out
of their replies stay on the clients.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from flwr.app import ArrayRecord, Context
from torch import Tensor, nn

from cflower.errors import CFlowerError
from cflower.learning.models import arrays_of
from cflower.messages.arrays import record_of, values_of

OWN = "own-model"
"""The key of a client's own arrays in the state of its context."""
LAST_EPOCHS = 10
"""As the authors of FedRep have it (lgcollins/FedRep, commit d82e629)."""
NORMALISING = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


def serve(method: str, model: nn.Module, context: Context) -> None:
    """Put what is the client's own into a model that it received."""
    own = context.state.get(OWN)
    if method and isinstance(own, ArrayRecord):
        values = {key: torch.from_numpy(values_of(array).copy()) for key, array in own.items()}
        model.load_state_dict(values, strict=False)


def keep(model: nn.Module, keys: Collection[str], context: Context) -> None:
    """Keep these arrays of a model as the client's own."""
    arrays = arrays_of(model)
    context.state[OWN] = record_of({key: arrays[key] for key in arrays if key in keys})


def local_keys(method: str, model: nn.Module) -> frozenset[str]:
    """The keys of the arrays that a method never sends; `CFlowerError` if a model has none."""
    layers = [(n, m) for n, m in model.named_modules() if [*m.parameters(recurse=False)]]
    match method:
        case "fedper" | "fedrep":
            layers = layers[-1:]
        case "fedbn":
            layers = [(name, layer) for name, layer in layers if isinstance(layer, NORMALISING)]
        case _:
            return frozenset()
    keys = frozenset(f"{name}.{key}" for name, layer in layers for key in layer.state_dict())
    if not keys or keys == model.state_dict().keys():
        raise CFlowerError(
            f"Got method={method!r}, but the model has no such layer beside others: choose another "
            "model or method."
        )
    return keys


@contextmanager
def pulled(model: nn.Module, towards: nn.Module, strength: float) -> Iterator[None]:
    """Within, gradients have that of strength/2 ‖model - towards‖²; 0 changes nothing."""
    goals = [parameter.detach().clone() for parameter in towards.parameters()]
    hooks = []
    for here, goal in zip(model.parameters(), goals, strict=True):
        if strength:  # hooks keep a dense model from its faster training

            def pull(gradient: Tensor, here: Tensor = here, goal: Tensor = goal) -> Tensor:
                return gradient + strength * (here.detach() - goal)

            hooks.append(here.register_hook(pull))  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def only_training(model: nn.Module, keys: Collection[str]) -> Iterator[None]:
    """Within, only the parameters with these keys are trained."""
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(key in keys)
    try:
        yield
    finally:
        model.requires_grad_(True)
