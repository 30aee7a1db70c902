"""A ClientApp in NumPy: quadratic clients in planted groups, by partition-id."""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from cflower import ClusteredFL
from cflower.algorithm.criteria import Decision, Evidence, Outcome, verdict
from cflower.algorithm.norm_criterion import NormCriterion
from cflower.messages.client_names import answer
from cflower.seeding import generator
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid
from cflower.strategy.observers import Observer

SHAPES = {"w": (3, 4), "b": (4,)}
CENTERS = generator(0, "centers").normal(size=(4, 16)).astype(np.float32)
CRITERION = NormCriterion(eps1=0.1, eps2=0.3, gamma_max=0.0, min_cluster_size=1)

Spoil = Callable[[Message, RecordDict, int], Message]
"""The wrong reply, from the message, the right content and the round."""


class Reports(list, Observer):
    """The reports of a run's rounds."""

    def on_round(self, report):
        self.append(report)


class Seen(NamedTuple):
    """One message that a client received."""

    kind: str
    client: int
    server_round: int
    cluster: str
    vector: np.ndarray


def initial_arrays(statistics: bool = False, dtype: str = "float32") -> ArrayRecord:
    arrays = {key: np.zeros(shape, dtype) for key, shape in SHAPES.items()}
    if statistics:
        arrays["bn.running_mean"] = np.zeros(2, np.float32)
        arrays["bn.num_batches_tracked"] = np.zeros((), np.int64)
    return ArrayRecord({key: Array(value) for key, value in arrays.items()})


def vector_of(arrays: ArrayRecord) -> np.ndarray:
    """w and b in one."""
    return np.concatenate([arrays[key].numpy().ravel() for key in SHAPES])


def fails_in(*rounds: int) -> Spoil:
    """Replies that are errors in these rounds."""

    def spoil(message: Message, content: RecordDict, server_round: int) -> Message:
        if server_round in rounds:
            raise ValueError("boom")
        return Message(content, reply_to=message)

    return spoil


def drawn_to_the_opposite(message: Message, content: RecordDict, server_round: int) -> Message:
    """A reply as if the client's minimum were the opposite one."""
    for key, old in message.content["arrays"].items():
        before, new = old.numpy(), content["arrays"][key].numpy()
        # new = (before + minimum) / 2
        content["arrays"][key] = Array((before - new).astype(new.dtype))
    return Message(content, reply_to=message)


@dataclass
class Quadratics:
    """f_i(w) = ‖w − c_g(i)‖²/2, one half step a round."""

    groups: tuple[int, ...]
    roll_call: bool = True
    metrics: Callable[[int], dict[str, float]] = lambda client: {"train_loss": float(client)}
    spoil: dict[int, Spoil] = field(default_factory=dict)
    spoil_evaluate: dict[int, Spoil] = field(default_factory=dict)
    evaluate_path: Callable[[Message, Context], Message] | None = None
    evaluates_path: Container[int] = ()
    adapts: bool = False
    """Whether the clients do the whole personal step by themselves."""
    noise: float = 1e-3
    seen: list[Seen] = field(default_factory=list)
    received: list[RecordDict] = field(default_factory=list)

    def grid(self) -> InlineGrid:
        return InlineGrid(self.app(), len(self.groups), {})

    def app(self) -> ClientApp:
        app = ClientApp()
        if self.roll_call:
            app.query("roll_call")(self._answer)
        app.train()(self._train)
        app.evaluate()(self._evaluate)
        if self.adapts:
            app.train("adapt")(self._adapt)
        if self.evaluate_path is not None:
            app.evaluate("way")(self.evaluate_path)
        return app

    def names(self, group: int) -> frozenset[str]:
        """The strategy's names of the clients of a group."""
        return frozenset(self.name(i) for i, g in enumerate(self.groups) if g == group)

    def name(self, client: int) -> str:
        return f"partition-{client}" if self.roll_call else str(FIRST_NODE_ID + client)

    @property
    def planted(self) -> set[frozenset[str]]:
        return {self.names(group) for group in set(self.groups)}

    def center(self, client: int, server_round: int) -> np.ndarray:
        """c_g(i)."""
        return CENTERS[self.groups[client]]

    def _answer(self, message: Message, context: Context) -> Message:
        client, number = context.node_config["partition-id"], context.node_config["num-partitions"]
        facts = {"num_partitions": number, "adapts": self.adapts}
        facts["evaluates_way"] = client in self.evaluates_path
        return answer(message, client_id=f"partition-{client}", **facts)

    def _read(self, kind: str, message: Message, context: Context) -> tuple[int, int, np.ndarray]:
        client = int(context.node_config["partition-id"])
        config = message.content["config"]
        server_round = int(config["server-round"])
        vector = vector_of(message.content["arrays"])
        self.seen.append(Seen(kind, client, server_round, str(config.get("cluster")), vector))
        self.received.append(message.content)
        return client, server_round, vector

    def _train(self, message: Message, context: Context) -> Message:
        client, server_round, vector = self._read("train", message, context)
        noise = self.noise * generator(0, server_round, client).normal(size=16)
        center = self.center(client, server_round)
        new = (vector + 0.5 * (center - vector) + noise).astype(vector.dtype)
        arrays = {"b": new[12:], "w": new[:12].reshape(3, 4)}  # not in the order of the message
        received = message.content["arrays"]
        if "bn.running_mean" in received:
            arrays["bn.running_mean"] = np.array([1e4 * client, -1e4], np.float32)
            arrays["bn.num_batches_tracked"] = received["bn.num_batches_tracked"].numpy() + 5
        record = ArrayRecord({key: Array(np.asarray(value)) for key, value in arrays.items()})
        metrics = MetricRecord({**self.metrics(client), "num-examples": 10 + client})
        content = RecordDict({"arrays": record, "metrics": metrics})
        if client in self.spoil:
            return self.spoil[client](message, content, server_round)
        return Message(content, reply_to=message)

    def _adapt(self, message: Message, context: Context) -> Message:
        client, server_round, leaf = self._read("adapt", message, context)
        config, size = message.content["config"], 10 + client
        center, model = self.center(client, server_round), leaf
        for _ in range(int(config["trainings"])):
            model = model + (center - model) / 2
        metrics = {"num-examples": size}
        for number, share in enumerate((0.0, config["share"])):
            mix = leaf + share * (model - leaf)
            metrics[f"loss.{number}"] = float(np.linalg.norm(mix - center))
        model = model.astype(leaf.dtype)
        arrays = {"b": Array(model[12:]), "w": Array(model[:12].reshape(3, 4))}
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord(metrics)})
        if client in self.spoil:
            return self.spoil[client](message, content, server_round)
        return Message(content, reply_to=message)

    def _evaluate(self, message: Message, context: Context) -> Message:
        client, server_round, vector = self._read("evaluate", message, context)
        distance = float(np.linalg.norm(vector - self.center(client, server_round)))
        metrics = MetricRecord({"loss": distance, "num-examples": 2})
        content = RecordDict({"metrics": metrics, "client": ConfigRecord({"group": client % 7})})
        if client in self.spoil_evaluate:
            return self.spoil_evaluate[client](message, content, server_round)
        return Message(content, reply_to=message)


class Halves:
    """Splits the root in the middle in round 3, whatever the updates."""

    def decide(self, evidence: Evidence, memory: Any) -> tuple[Decision, Any]:
        if evidence.cluster != "0" or evidence.server_round < 3:
            return verdict(evidence, Outcome.MOVING, "not yet"), memory
        half = len(evidence.clients) // 2
        sides = evidence.clients[:half], evidence.clients[half:]
        return verdict(evidence, Outcome.SPLIT, "in the middle", sides=sides), memory

    def inherit(self, memory: Any) -> Any:
        return {}


def strategy_of(**settings: object) -> ClusteredFL:
    return ClusteredFL(settings.pop("criterion", CRITERION), **settings)


def run(
    clients: Quadratics,
    num_rounds: int = 12,
    *,
    arrays: ArrayRecord | None = None,
    observers: Iterable[Observer] = (),
    start: dict[str, Any] | None = None,
    **settings: object,
) -> tuple[ClusteredFL, Result, Reports]:
    """A strategy after a run, its result, and the reports of its rounds."""
    reports = Reports()
    strategy = strategy_of(observers=[reports, *observers], **settings)
    arrays = arrays or initial_arrays()
    result = strategy.start(clients.grid(), arrays, num_rounds, **(start or {}))
    return strategy, result, reports


def clusters_of(strategy: ClusteredFL) -> set[frozenset[str]]:
    return {frozenset(leaf.members) for leaf in strategy.tree.leaves}


def without(groups: Iterable[frozenset[str]], *names: str) -> set[frozenset[str]]:
    """The groups when these clients are left out."""
    return {group - set(names) for group in groups}
