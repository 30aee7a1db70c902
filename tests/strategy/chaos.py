"""Whole runs on an unreliable Grid: bad and late replies, nodes that disconnect, killed servers."""

import gc
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict

from cflower import ClusteredFL
from cflower.messages.client_names import answer
from cflower.recording.recorder import Recorder
from cflower.runs.checkpoint import Checkpoints, digest_of, packed
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid
from cflower.strategy.observers import Checkpoint, Observer
from tests.algorithm.planted import assert_partitions
from tests.strategy.quadratics import Quadratics, Reports, initial_arrays

Change = Callable[[RecordDict], Any]


class Killed(BaseException):
    """The end of the server's process."""


class Broken(BaseException):
    """A violated law; an observer's ordinary error would end no run."""


def array(key: str, value: Any) -> Change:
    return lambda content: content["arrays"].update({key: Array(np.asarray(value))})


def metrics(**values: Any) -> Change:
    record = MetricRecord({key.replace("_", "-"): value for key, value in values.items()})
    return lambda content: content.update({"metrics": record})


def torn(content: RecordDict) -> None:
    whole = content["arrays"]["w"]
    content["arrays"]["w"] = Array(whole.dtype, whole.shape, whole.stype, whole.data[:-7])


def swollen(content: RecordDict) -> None:
    """A header with a far larger shape than the data."""
    data = content["arrays"]["w"].data.replace(b"(3, 4), ", b"(9999999999999,), ")
    content["arrays"]["w"] = Array("float32", (3, 4), "numpy.ndarray", data)


BAD: dict[str, Change] = {
    "nan": array("b", np.full(4, np.nan, np.float32)),
    "infinity": array("b", np.full(4, -np.inf, np.float32)),
    "too large for float32": array("b", np.full(4, 1e300)),
    "norm overflows": array("b", np.full(4, 1e30, np.float32)),
    "one entry, would broadcast": array("b", np.zeros(1, np.float32)),
    "transposed": array("w", np.zeros((4, 3), np.float32)),
    "missing array": lambda content: content["arrays"].pop("w"),
    "extra array": array("c", np.zeros(3, np.float32)),
    "integers": array("b", np.zeros(4, np.int64)),
    "texts": array("b", np.array(["a", "b", "c", "d"])),
    "torn bytes": torn,
    "swollen header": swollen,
    "no arrays": lambda content: content.pop("arrays"),
    "two records of arrays": lambda content: content.update({"more": ArrayRecord()}),
    "no metrics": lambda content: content.pop("metrics"),
    "two records of metrics": lambda content: content.update({"more": MetricRecord()}),
    "no num-examples": metrics(loss=1.0),
    "zero examples": metrics(num_examples=0),
    "negative examples": metrics(num_examples=-5),
    "absurdly many examples": metrics(num_examples=1e13),
    "infinitely many examples": metrics(num_examples=float("inf")),
    "a list of examples": metrics(num_examples=[3, 4]),
    "nothing": lambda content: content.clear(),
    "error": lambda content: Error(2, "<class 'ValueError'>:<'boom'>"),
    "crash": lambda content: Error(8, "ClientApp stopped responding."),
}
"""Changes that make a good reply a bad one, in place or by returning an error."""

HARMLESS: dict[str, Change] = {
    "twice": lambda content: None,
    "also to another round": lambda content: None,
    "loss is not a number": lambda content: content["metrics"].update({"loss": float("nan")}),
}
"""Oddities that do not make a reply unusable."""


@dataclass(frozen=True)
class Plan:
    """The failures of a run, by (client, round)."""

    faults: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Kind of the reply to training: a key of `BAD` or `HARMLESS`, or "silence" for none."""
    away: Mapping[int, range] = field(default_factory=dict)
    """Rounds in which a client is disconnected; it returns with another node id."""
    late: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Delay of a reply to training, in rounds, by (client, round of the message)."""

    def silenced(self) -> "Plan":
        """The plan with silence instead of every bad reply and every absence."""
        bad = {where: "silence" for where, kind in self.faults.items() if kind in BAD}
        away = {(client, r): "silence" for client, rounds in self.away.items() for r in rounds}
        return Plan({**self.faults, **bad, **away})


class Machines(Quadratics):
    """Clients that do not report their number, so the server does not wait for absent ones."""

    def _answer(self, message: Message, context: Context) -> Message:
        return answer(message, client_id=f"partition-{context.node_config['partition-id']}")


class ChaosGrid(InlineGrid):
    """Nodes in one process that fail by a plan; ``now`` is the current round."""

    def __init__(
        self, clients: Quadratics, plan: Plan, tick: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(clients.app(), len(clients.groups), {})
        self.plan, self.now, self.tick = plan, 1, tick
        self._old: dict[int, Message] = {}
        self._pulled: list[Message] = []
        for client, rounds in plan.away.items():
            after = self.node_of(client, rounds.stop)
            first = self._contexts[FIRST_NODE_ID + client]
            self._contexts[after] = Context(1, after, first.node_config, RecordDict(), {})

    def node_of(self, client: int, server_round: int) -> int:
        returned = client in self.plan.away and server_round >= self.plan.away[client].stop
        return FIRST_NODE_ID + client + 1000 * returned

    def get_node_ids(self) -> Iterable[int]:
        partitions = {int(c.node_config["partition-id"]) for c in self._contexts.values()}
        here = (c for c in partitions if self.now not in self.plan.away.get(c, ()))
        return [self.node_of(client, self.now) for client in here]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return super().push_messages(m for m in messages if self.kind_of(m) != "silence")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.tick()
        came = list(super().pull_messages({i for i in message_ids if self.is_due(i)}))
        return [*came, *(self._pulled.pop() for _ in range(len(self._pulled)))]

    def kind_of(self, message: Message) -> str | None:
        """The planned kind of the reply to a message."""
        where = self.place_of(message)
        return self.plan.faults.get(where) if where else None

    def is_due(self, message_id: str) -> bool:
        """Whether the reply comes in the current round."""
        where = self.place_of(self._pending[message_id])
        return where is None or self.now >= where[1] + self.plan.late.get(where, 0)

    @staticmethod
    def place_of(message: Message) -> tuple[int, int] | None:
        """The client and the round of a train message."""
        if message.metadata.message_type != "train":
            return None
        client = message.metadata.dst_node_id % 1000
        return client, int(message.content["config"]["server-round"])

    def run_client(self, message: Message, context: Context) -> tuple[Message, Exception | None]:
        return self.spoiled(message, super().run_client(message, context)[0]), None

    def spoiled(self, message: Message, reply: Message) -> Message:
        kind = self.kind_of(message)
        node = message.metadata.dst_node_id
        if kind in BAD:
            error = BAD[kind](reply.content)
            return Message(error, reply_to=message) if isinstance(error, Error) else reply
        if kind in HARMLESS:
            HARMLESS[kind](reply.content)
        if kind == "twice":
            self._pulled.append(reply)
        if kind == "also to another round" and node in self._old:
            self._pulled.append(Message(RecordDict(), reply_to=self._old[node]))
        if message.metadata.message_type == "train":
            self._old[node] = message
        return reply


class Clock(Reports):
    """Keeps the reports, and the grid's current round."""

    def __init__(self, grid: ChaosGrid) -> None:
        self.grid = grid

    def on_round(self, report: Any) -> None:
        super().on_round(report)
        self.grid.now = report.server_round + 1


class MortalRecorder(Recorder):
    """May be killed before, in or after writing a file; its rounds take no time."""

    tick: Callable[[], None]

    def _write(self, record: Any, **options: Any) -> bytes:
        self.tick()
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / f"{record.FILE}.tmp").write_bytes(b"{")
        self.tick()
        return super()._write(record, **options)

    def on_round(self, report: Any) -> None:
        super().on_round(replace(report, seconds=0.0))
        self.tick()


class Fuse:
    """Kills after the given numbers of steps, each counted from the kill before."""

    def __init__(self, kills: Iterable[int]) -> None:
        self.kills, self.steps = list(kills), 0

    def tick(self) -> None:
        self.steps += 1
        if self.kills and self.steps >= self.kills[0]:
            self.kills.pop(0)
            self.steps = 0
            raise Killed


class Laws(Clock):
    """Checks the laws after every round, and continues the clock of a resumed run."""

    def __init__(self, grid: ChaosGrid, num_clients: int, path: Path | None) -> None:
        super().__init__(grid)
        self.num_clients, self.path = num_clients, path

    def on_start(self, run: Any) -> None:
        folder = self.path / "checkpoints" if self.path else None
        if folder and any(folder.glob("*.sha256")):
            self.grid.now = Checkpoints(folder).newest(print).server_round + 1

    def on_round(self, report: Any) -> None:
        super().on_round(report)
        try:
            check_laws(report.state.tree, self.num_clients)
        except AssertionError as broken:
            raise Broken from broken


@dataclass(frozen=True)
class Scenario:
    """A run without failures."""

    groups: tuple[int, ...]
    num_rounds: int
    settings: Mapping[str, Any]
    """Of `ClusteredFL`."""

    def play(self, plan: Plan, path: Path | None = None, kills: Iterable[int] = ()) -> ClusteredFL:
        """The strategy after the run, which is resumed after every kill."""
        fuse = Fuse(kills)
        while True:
            gc.collect()  # frees the lock of a killed recorder, as the end of its process would
            with suppress(Killed):
                return self._play(plan, path, fuse)

    def _play(self, plan: Plan, path: Path | None, fuse: Fuse) -> ClusteredFL:
        grid = ChaosGrid(Machines(self.groups), plan, fuse.tick)
        observers: list[Observer] = [Laws(grid, len(self.groups), path)]
        if path is not None:
            resume = str(path) if (path / "config.json").exists() else ""
            recorder = MortalRecorder(path.parent, resume=resume, say=lambda text: None)
            recorder.path, recorder.tick = path, fuse.tick
            observers.append(recorder)
        strategy = ClusteredFL(**self.settings, observers=observers)
        strategy.start(grid, initial_arrays(), self.num_rounds, timeout=5)
        return strategy


def check_laws(tree: Any, num_clients: int) -> None:
    """The leaves partition the clients, every level does, and every number is finite."""
    assert_partitions(tree, [f"partition-{i}" for i in range(num_clients)])
    for cluster in tree.clusters.values():
        for vector in (*cluster.model, *cluster.edge.values(), *cluster.optimizer.values()):
            assert np.isfinite(vector).all()


def picture(strategy: ClusteredFL) -> dict[str, Any]:
    """The whole state of the algorithm, comparable bit by bit."""
    return packed(Checkpoint(0, replace(strategy.state, placed={})), digest_of)
