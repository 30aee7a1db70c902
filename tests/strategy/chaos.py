"""Whole runs on a Grid that breaks: bad and late replies, nodes that come and go, kills."""

import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict

from cflower import ClusteredFL
from cflower.messages.client_names import answer
from cflower.recording.checkpoint import Checkpoints, packed
from cflower.recording.recorder import Recorder
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid
from cflower.strategy.observers import Observer
from tests.strategy.quadratics import Quadratics, initial_arrays

Spoiled = Callable[[RecordDict], Any]


class Killed(BaseException):
    """The process is gone."""


class Broken(BaseException):
    """A law does not hold."""


# ------------------------------------------------------------------- what a client may send


def array(key: str, value: Any) -> Spoiled:
    return lambda content: content["arrays"].update({key: Array(np.asarray(value))})


def metrics(**values: Any) -> Spoiled:
    record = MetricRecord({key.replace("_", "-"): value for key, value in values.items()})
    return lambda content: content.update({"metrics": record})


def torn(content: RecordDict) -> None:
    whole = content["arrays"]["w"]
    content["arrays"]["w"] = Array(whole.dtype, whole.shape, whole.stype, whole.data[:-7])


def swollen(content: RecordDict) -> None:
    """A header that announces far more than follows."""
    data = content["arrays"]["w"].data.replace(b"(3, 4), ", b"(9999999999999,), ")
    content["arrays"]["w"] = Array("float32", (3, 4), "numpy.ndarray", data)


BAD: dict[str, Spoiled] = {
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
"""Each makes a bad reply out of a good one, in place, or returns the error instead."""

HARMLESS: dict[str, Spoiled] = {
    "twice": lambda content: None,
    "also to another round": lambda content: None,
    "loss is not a number": lambda content: content["metrics"].update({"loss": float("nan")}),
}
"""Oddities after which the reply is as good as without."""

# ----------------------------------------------------------------------------- the federation


@dataclass(frozen=True)
class Plan:
    """What goes wrong, by (client, round)."""

    faults: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """DataSpec of the reply to training; "silence": none."""
    away: Mapping[int, range] = field(default_factory=dict)
    """Rounds in which a client's node is gone; it returns under another node id."""
    late: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """How many rounds later the reply to training comes, by (client, round that it answers)."""

    def silenced(self) -> "Plan":
        """Silence in the place of every bad reply and of every absence."""
        bad = {where: "silence" for where, kind in self.faults.items() if kind in BAD}
        away = {(client, r): "silence" for client, rounds in self.away.items() for r in rounds}
        return Plan({**self.faults, **bad, **away})


class Machines(Quadratics):
    """Clients that do not announce how many they are: nobody waits for those who are away."""

    def _answer(self, message: Message, context: Context) -> Message:
        return answer(message, client_id=f"partition-{context.node_config['partition-id']}")


class ChaosGrid(InlineGrid):
    """Nodes in one process with a plan of what goes wrong; ``now`` is the round to come."""

    def __init__(self, clients: Quadratics, plan: Plan, now: int, tick: Callable[[], None]) -> None:
        super().__init__(clients.app(), len(clients.groups), {})
        self.plan, self.now, self.tick = plan, now, tick
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
        return [
            self.node_of(client, self.now)
            for client in partitions
            if self.now not in self.plan.away.get(client, ())
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return super().push_messages(m for m in messages if self.kind_of(m) != "silence")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.tick()
        came = list(super().pull_messages({i for i in message_ids if self.is_due(i)}))
        return [*came, *(self._pulled.pop() for _ in range(len(self._pulled)))]

    def kind_of(self, message: Message) -> str | None:
        """The plan's word on the reply to this message."""
        where = self.place_of(message)
        return self.plan.faults.get(where) if where else None

    def is_due(self, message_id: str) -> bool:
        """Whether the plan lets the reply come now."""
        where = self.place_of(self._pending[message_id])
        return where is None or self.now >= where[1] + self.plan.late.get(where, 0)

    @staticmethod
    def place_of(message: Message) -> tuple[int, int] | None:
        """The client and the round of a message to train."""
        if message.metadata.message_type != "train":
            return None
        client = message.metadata.dst_node_id % 1000
        return client, int(message.content["config"]["server-round"])

    def _answer(self, message: Message) -> Message:
        kind = self.kind_of(message)
        reply = super()._answer(message)
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


# -------------------------------------------------------------------------------- the server


class MortalRecorder(Recorder):
    """May die before, in or after writing a file, and takes no time."""

    tick: Callable[[], None]

    def _write(self, name: str, content: bytes, *, lasting: bool = True) -> None:
        self.tick()
        (self.path / f"{name}.tmp").parent.mkdir(parents=True, exist_ok=True)
        (self.path / f"{name}.tmp").write_bytes(content[: len(content) // 2])
        self.tick()
        super()._write(name, content, lasting=lasting)

    def on_round(self, report: Any) -> None:
        super().on_round(replace(report, seconds=0.0))
        self.tick()


class Fuse:
    """Kills at the given counts of steps, each time it is reached anew."""

    def __init__(self, kills: Iterable[int]) -> None:
        self.kills, self.steps = list(kills), 0

    def tick(self) -> None:
        self.steps += 1
        if self.kills and self.steps >= self.kills[0]:
            self.kills.pop(0)
            self.steps = 0
            raise Killed


def unwritten(name: str, content: bytes) -> None:
    """For who only reads."""
    raise AssertionError(name)


@dataclass
class Watch(Observer):
    """Checks the laws after every round, and tells the grid which one comes next."""

    grid: ChaosGrid
    scenario: "Scenario"
    path: Path | None

    def on_start(self, run: Any) -> None:
        if self.path is not None and any((self.path / "checkpoints").glob("*.sha256")):
            checkpoint = Checkpoints(self.path / "checkpoints", unwritten).newest(print)
            self.grid.now = checkpoint.server_round + 1

    def on_round(self, report: Any) -> None:
        self.grid.now = report.server_round + 1
        try:
            check_laws(report.state.tree, len(self.scenario.groups))
        except AssertionError as broken:
            raise Broken from broken  # an observer's ordinary error would end nothing


@dataclass(frozen=True)
class Scenario:
    """A run without its faults."""

    groups: tuple[int, ...]
    num_rounds: int
    settings: Mapping[str, Any]
    """Of `ClusteredFL`."""

    def play(self, plan: Plan, path: Path | None = None, kills: Iterable[int] = ()) -> ClusteredFL:
        """The strategy after the run, taken up again after every kill."""
        fuse = Fuse(kills)
        while True:
            gc.collect()  # the lock of a recorder that was killed goes with it, as with its process
            try:
                return self._play(plan, path, fuse)
            except Killed:
                continue

    def _play(self, plan: Plan, path: Path | None, fuse: Fuse) -> ClusteredFL:
        grid = ChaosGrid(Machines(self.groups), plan, 1, fuse.tick)
        observers: list[Observer] = []
        if path is not None:
            resume = str(path) if (path / "config.json").exists() else ""
            recorder = MortalRecorder(path.parent, resume=resume, say=lambda text: None)
            recorder.path, recorder.tick = path, fuse.tick
            observers.append(recorder)
        strategy = ClusteredFL(**self.settings, observers=[Watch(grid, self, path), *observers])
        strategy.start(grid, initial_arrays(), self.num_rounds, timeout=5)
        return strategy


# ------------------------------------------------------------------------------------- laws


def check_laws(tree: Any, num_clients: int) -> None:
    """The leaves partition the clients, every level does, and every number is finite."""
    everyone = sorted(f"partition-{i}" for i in range(num_clients))
    assert sorted(name for leaf in tree.leaves for name in leaf.members) == everyone
    for cluster in tree.clusters.values():
        below = [n for child in cluster.children for n in tree.clusters[child].members]
        assert cluster.is_leaf or sorted(below) == sorted(cluster.members)
        for vector in (*cluster.model, *cluster.edge.values(), *cluster.optimizer.values()):
            assert np.isfinite(vector).all()


def picture(strategy: ClusteredFL) -> dict[str, Any]:
    """All of the algorithm's state, comparable bit by bit."""

    def bits(vector: np.ndarray) -> str:
        return f"{vector.dtype} {vector.tobytes().hex()}"

    clusters = {
        c.name: (
            *(c.members, c.children, c.born, c.split_round),
            packed((list(c.model), dict(c.edge), dict(c.optimizer), c.memory), bits),
        )
        for c in strategy.tree.clusters.values()
    }
    known = {
        name: (*update._replace(vector=bits(update.vector), origin=bits(update.origin)),)
        for name, update in sorted(strategy.state.known.items())
    }
    return {"clusters": clusters, "known": known, "walking": dict(strategy.tree.unassigned)}
