"""An adversary that searches: small programs of attack are drawn and changed, the worst are kept.

    python scripts/run.py search --budget 60 --seed 0

A program says who is hostile, when, in which federation, and what they send: in which arrays, in
which direction, how far, and with which claim. Half of the programs are drawn anew, the others are
one of the ten worst so far with one part changed. What a program costs are the points of accuracy
that the honest clients lose against the same run in which the hostile ones behave.

Prints the ten worst and writes all to ``search.json``; a program there can be run again (`cost`).
"""

import json
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple

import command
import numpy as np
import typer
from adversaries import shift_of
from command import out_folder, quieten_flower
from flwr.app import Array, Context, Message, MessageType
from tables import show

from cflower import server_app, simulate
from cflower.client_app import app as honest
from cflower.config import RunConfig
from cflower.errors import FederationError
from cflower.seeding import generator

CLIENTS, WORST = 20, 10
OWN = "untrained_models"
Values = np.ndarray[Any, Any]


class Federation(NamedTuple):
    """The run that is attacked."""

    model: str
    groups: str
    fraction: float
    optimizer: str
    aggregation: str
    seed: int

    @property
    def keys(self) -> dict[str, Any]:
        """Its run config."""
        keys = {"model": self.model, "seed": self.seed, "aggregation": self.aggregation}
        keys |= {"fraction-train": self.fraction, "server-optimizer": self.optimizer}
        rounds = 25 if self.fraction == 1 else 60
        own = {"num-server-rounds": rounds, "personal": False, "min-available-nodes": CLIENTS}
        return {**keys, **own, **shift_of(self.groups)}


class Program(NamedTuple):
    """An attack: each part is one of `PARTS`."""

    model: str
    groups: str
    fraction: float
    rule: str
    hostile: int
    when: str
    arrays: str
    direction: str
    length: float
    claim: float

    def federation(self, seed: int) -> Federation:
        """The run that it attacks."""
        optimizer, aggregation = self.rule.split("+")
        return Federation(self.model, self.groups, self.fraction, optimizer, aggregation, seed)


PARTS: Mapping[str, tuple[Any, ...]] = {
    "model": ("mlp", *(f"{OWN}:{name}" for name in ("frozen_batchnorm", "batchnorm", "indexed"))),
    "groups": ("", "10,10"),
    "fraction": (1.0, 0.1),
    "rule": ("fedavg+fedavg", "fedadam+fedavg", "fedavg+fedmedian"),
    "hostile": (1, 2, 4),
    "when": ("always", "first", "odd", "late"),
    "arrays": ("all", "trained", "statistics", "one"),
    "direction": ("own", "others", "noise", "constant", "back"),
    "length": (-1e6, -3.0, -2.0, -1.0, 0.0, 0.5, 2.0, 3.0, 1e6, 1e30),
    "claim": (0.01, 1.0, 3.0, 1e9),
}
WHEN: Mapping[str, Callable[[int, int], bool]] = {
    "always": lambda server_round, asked: True,
    "first": lambda server_round, asked: asked == 1,
    "odd": lambda server_round, asked: asked % 2 == 1,
    "late": lambda server_round, asked: server_round > 12,
}
"""From the round, and how often the client has been asked."""


class Attacked:
    """A ClientApp in which the last clients follow a program; none in an honest run."""

    def __init__(self, program: Program | None, hostile: int) -> None:
        self.program, self.hostile = program, range(CLIENTS - hostile, CLIENTS)
        self._asked = [0] * CLIENTS
        self._others: dict[str, Values] = {}
        self._first: dict[str, Values] = {}

    def __call__(self, message: Message, context: Context) -> Message:
        reply, client = honest(message, context), int(context.node_config["partition-id"])
        if message.metadata.message_type != MessageType.TRAIN or reply.has_error():
            return reply
        ((name, got),) = message.content.array_records.items()
        sent = reply.content.array_records[name]
        before = {key: array.numpy() for key, array in got.items()}
        self._first, self._asked[client] = self._first or before, self._asked[client] + 1
        if self.program is None or client not in self.hostile:
            self._others = {key: array.numpy() - before[key] for key, array in sent.items()}
            return reply
        config = message.content.config_records["config"]
        server_round = int(str(config["server-round"]))
        if WHEN[self.program.when](server_round, self._asked[client]):
            rng = generator(client, "search", server_round)
            for key in self._spoilt(sorted(sent), before):
                spoilt = self._value(key, before[key], sent[key].numpy(), rng)
                sent[key] = Array(spoilt)
        for record in reply.content.metric_records.values():
            examples = self.program.claim * float(str(record["num-examples"]))
            record["num-examples"] = max(1, int(examples))
        return reply

    def _spoilt(self, keys: list[str], model: Mapping[str, Values]) -> list[str]:
        """The arrays in which they send what is not theirs."""
        assert self.program is not None
        statistics = [k for k in keys if "running" in k or model[k].dtype.kind != "f"]
        trained = [key for key in keys if key not in statistics]
        kinds = {"all": keys, "trained": trained, "statistics": statistics, "one": trained[:1]}
        return kinds[self.program.arrays]

    def _value(self, key: str, before: Values, own: Values, rng: np.random.Generator) -> Values:
        assert self.program is not None
        change = own - before
        directions: dict[str, Callable[[], Values]] = {
            "own": lambda: change,
            "others": lambda: self._others.get(key, change),
            "noise": lambda: rng.normal(size=before.shape) * np.abs(change).mean(),
            "constant": lambda: np.ones(before.shape),
            "back": lambda: self._first[key] - before,
        }
        limits = np.finfo("f4") if own.dtype.kind == "f" else np.iinfo("i4")
        wanted = before + self.program.length * np.asarray(directions[self.program.direction]())
        # Half of the largest number: the difference to the model must be a number, too.
        return np.asarray(np.clip(wanted, limits.min / 2, limits.max / 2).astype(own.dtype))


def accuracy(federation: Federation, program: Program | None, hostile: int) -> float:
    """Mean accuracy of the honest clients; 0 if the run does not reach its end."""
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.read({**federation.keys, "output-dir": folder})
        server = partial(server_app.run, say=lambda text: None)
        behave, keys = Attacked(program, hostile), config.as_keys()
        try:
            found = simulate(behave, CLIENTS, server_app=server, run_config=keys)["clients"]
        except FederationError:
            return 0.0
    return mean(found[f"partition-{i}"]["accuracy"] for i in range(CLIENTS - hostile))


unharmed = cache(partial(accuracy, program=None))


def cost(program: Program, seed: int) -> float:
    """Points of accuracy that a program costs the honest clients."""
    federation, hostile = program.federation(seed), program.hostile
    before = unharmed(federation, hostile=hostile)
    return 100 * (before - accuracy(federation, program, hostile))


def drawn(rng: np.random.Generator) -> Program:
    """A program of parts drawn one by one."""
    return Program(*(values[rng.integers(len(values))] for values in PARTS.values()))


def changed(program: Program, rng: np.random.Generator) -> Program:
    """A program with one part drawn anew."""
    name = list(PARTS)[rng.integers(len(PARTS))]
    values = [value for value in PARTS[name] if value != getattr(program, name)]
    return program._replace(**{name: values[rng.integers(len(values))]})


def search(
    budget: Annotated[float, typer.Option(min=0, help="Minutes.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of the programs and the runs.")] = 0,
    out: command.Out = Path("outputs/search"),
) -> None:
    """Search for what hurts most."""
    quieten_flower()
    rng, tried, end = generator(seed, "search"), dict[Program, float](), time.time() + 60 * budget
    path = out_folder(out) / "search.json"
    while not tried or time.time() < end:
        worst = sorted(tried, key=lambda program: -tried[program])[:WORST]
        anew = len(worst) < WORST or rng.random() < 0.5
        program = drawn(rng) if anew else changed(worst[rng.integers(WORST)], rng)
        if program not in tried:
            tried[program] = cost(program, seed)
            rows = [{**p._asdict(), "seed": seed, "points": tried[p]} for p in tried]
            path.write_text(json.dumps(sorted(rows, key=lambda row: -row["points"]), indent=1))
    show(json.loads(path.read_text())[:WORST], f"{len(tried)} programs tried; the worst")
