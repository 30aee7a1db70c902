"""The battery's clients in this process, for methods that are no Flower Strategy.

Data, model, local training, order of the examples and choice of the participants are what
cflower's own apps use, so that FedAvg here is FedAvg there (a test asserts it). What a method
sends is counted in bytes of float32, what the clients compute in CPU seconds.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.examples import ClientData
from cflower.data.settings import DataSettings
from cflower.learning.models import build_model
from cflower.learning.settings import TrainingSettings
from cflower.learning.training import evaluate, train
from cflower.ordering import in_order
from cflower.seeding import generator, torch_seed

Vector = NDArray[np.float32]
"""All that a model sends in one row: its parameters, and statistics such as BatchNorm's."""
Change = Callable[[slice, torch.Tensor, torch.Tensor], torch.Tensor]
"""Another gradient for one of a model's parameters, a part of its `Vector`; all three flat.

Called with which part it is, its gradient and its values.
"""
Part = Literal["train", "decide", "report"]


class Outcome(NamedTuple):
    """What a method leaves behind."""

    models: Mapping[str, Vector]
    """The model that serves each client."""
    groups: Mapping[str, Any] | None = None
    """The group each client was put into; None: the method makes no groups."""


@dataclass
class Cost:
    """What a run took, without the final evaluation."""

    down: int = 0
    """Bytes from the server to clients."""
    up: int = 0
    """Bytes from clients to the server."""
    trainings: float = 0.0
    """Of all clients together, each of the run's ``local-epochs`` over a client's examples."""
    client_seconds: float = 0.0
    """CPU time of all clients together."""
    server_seconds: float = 0.0
    """CPU time of everything else."""


class Federation:
    """The clients of one run config, and what they can be asked for.

    Parameters
    ----------
    config : mapping
        A whole run config, or what differs from the defaults.
    all_examples : bool
        Clients also train on the examples by which cflower decides: a method that decides nothing
        by them has them to learn from.
    """

    def __init__(self, config: Mapping[str, Any], all_examples: bool = False) -> None:
        self.config = RunConfig.read(config)
        settings, count = self.config.part(DataSettings), self.config.min_available_nodes
        self.clients: dict[str, ClientData] = {
            f"partition-{i}": load_client_data(settings, i, count) for i in range(count)
        }
        if all_examples:
            self.clients = {name: with_deciding(data) for name, data in self.clients.items()}
        self.training = self.config.part(TrainingSettings)
        self.rounds, self.cost = self.config.num_server_rounds, Cost()
        self.initial = self.fresh_model(self.config.seed)

    def fresh_model(self, seed: int) -> Vector:
        """A freshly initialised model; the run's first one for its own seed."""
        data = self.clients["partition-0"].train
        self._model = build_model(self.config.model, data.input_shape, data.num_classes, seed)
        return self._vector()

    def at(self, server_round: int) -> None:
        """Let the clients have the data that they have from a round on; here the same for ever."""

    def participants(self, server_round: int) -> tuple[str, ...]:
        """Who trains in a round: those whom `ClusteredFL` draws from one cluster of all."""
        names = list(self.clients)
        order = generator(self.config.seed, "train", server_round).permutation(len(names))
        share = max(1, round(self.config.fraction_train * len(names)))
        return in_order(names[i] for i in order[:share])

    def send(self, values: int) -> None:
        """Note that the server sends a client so many numbers."""
        self.cost.down += 4 * values

    def receive(self, values: int) -> None:
        """Note that a client sends the server so many numbers."""
        self.cost.up += 4 * values

    @contextmanager
    def on_client(self) -> Iterator[None]:
        """Count the CPU time of what is done inside as a client's."""
        began = time.process_time()
        try:
            yield
        finally:
            self.cost.client_seconds += time.process_time() - began

    def train(
        self,
        client: str,
        start: Vector,
        server_round: int,
        *,
        settings: TrainingSettings | None = None,
        change: Change | None = None,
    ) -> Vector:
        """One client's local training, as cflower's ClientApp does it.

        Parameters
        ----------
        client : str
        start : ndarray
            Never changed.
        server_round : int
            Counted from 1; sets the learning rate and the order of the examples.
        settings : TrainingSettings, optional
            Instead of the run's.
        change : callable, optional
            Makes another gradient, for each parameter in every step.
        """
        settings = settings or self.training
        self.cost.trainings += settings.local_epochs / self.training.local_epochs
        with self.on_client():
            seed = torch_seed(self.config.seed, "train", server_round, client)
            self._load(start)
            hooks = self._hooks(change) if change else ()
            train(
                self._model,
                self.clients[client].train,
                settings,
                server_round=server_round,
                seed=seed,
            )
            for hook in hooks:
                hook.remove()
            return self._vector()

    def train_all(
        self, clients: Iterable[str], start: Vector, server_round: int
    ) -> dict[str, Vector]:
        """What clients send back who are sent the same model to train."""
        trained = {}
        for client in clients:
            self.send(len(start))
            trained[client] = self.train(client, start, server_round)
            self.receive(len(start))
        return trained

    def measure(self, client: str, model: Vector, part: Part = "train") -> dict[str, float]:
        """Accuracy and loss of a model on one part of a client's examples."""
        with self.on_client():
            return evaluate(self._load(model), getattr(self.clients[client], part))

    def latent(self, client: str, model: Vector, part: Part = "train") -> NDArray[Any]:
        """What a model's last layer sees of a client's examples, shape (n, width)."""
        with self.on_client(), torch.no_grad():
            data = getattr(self.clients[client], part)
            layers = list(self._load(model).eval())[:-1]  # every model here is a Sequential
            return torch.nn.Sequential(*layers)(torch.tensor(data.inputs)).numpy()

    def size_below_the_head(self) -> int:
        """How many parameters come before those of the last layer, where `Vector` ends."""
        layers = [list(layer.parameters(recurse=False)) for layer in self._model.modules()]
        return len(self.initial) - sum(p.numel() for p in [layer for layer in layers if layer][-1])

    def mean(self, models: Mapping[str, Vector], *, weighted: bool = True) -> Vector:
        """The clients' models averaged, by their numbers of training examples or plainly."""
        weights = [len(self.clients[c].train) if weighted else 1 for c in models]
        stacked = np.stack(list(models.values()))
        return np.average(stacked, axis=0, weights=weights).astype(np.float32)

    def train_groups(
        self,
        groups: Mapping[str, Any],
        models: dict[Any, Vector],
        rounds: Sequence[int],
        each: Callable[[int, dict[Any, Vector]], None] = lambda server_round, models: None,
    ) -> dict[Any, Vector]:
        """FedAvg within every group; ``each`` is called after every round."""
        for server_round in rounds:
            present: dict[Any, list[str]] = {}
            for client in self.participants(server_round):
                present.setdefault(groups[client], []).append(client)
            models = models | {
                group: self.mean(self.train_all(clients, models[group], server_round))
                for group, clients in present.items()
            }
            each(server_round, models)
        return models

    def _load(self, values: Vector) -> Any:
        begin = 0
        for array in self._arrays():
            part = values[begin : (begin := begin + array.numel())]
            array.copy_(torch.tensor(part).view_as(array))
        return self._model

    def _vector(self) -> Vector:
        return torch.cat([array.flatten() for array in self._arrays()]).numpy()

    def _arrays(self) -> list[torch.Tensor]:
        """What is averaged of the model, in the order of `Vector`: all but whole numbers."""
        arrays = self._model.state_dict().values()
        return [array for array in arrays if array.is_floating_point()]

    def _hooks(self, change: Change) -> list[Any]:
        """Those on the parameters that change their gradients."""
        hooks, end = [], 0
        for parameter in self._model.state_dict(keep_vars=True).values():
            begin, end = end, end + parameter.numel() * parameter.is_floating_point()
            if not parameter.requires_grad:
                continue

            def changed(
                gradient: torch.Tensor,
                here: torch.Tensor = parameter,
                place: slice = slice(begin, end),
            ) -> torch.Tensor:
                flat = change(place, gradient.flatten(), here.detach().flatten())
                return flat.view_as(here)

            hooks.append(parameter.register_hook(changed))
        return hooks


def with_deciding(data: ClientData) -> ClientData:
    """A client's data with the deciding examples to train on, too, unless they are reported."""
    return replace(data, train=data.train.with_others(data.decide)) if data.apart else data


def pulled(strength: float, towards: Vector) -> Change:
    """Adds the gradient of ``strength / 2 * ‖model - towards‖²``."""
    goal = torch.tensor(towards)
    return lambda place, gradient, here: gradient + strength * (here - goal[place])
