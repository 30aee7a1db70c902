"""What `bench` measures of `cflower simulate`: a round, what a round writes, and the start."""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from command import quieten_flower
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.sgd import sgd

from benchmarks.measure import Figure, cpu_of
from cflower import ClusteredFL, Recorder, simulate
from cflower.algorithm.criteria import NeverSplit
from cflower.client_app import app as client_app
from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.settings import DataSettings
from cflower.learning.models import build_model
from cflower.server_app import run as run_server

MNIST = Path(os.environ.get("MNIST", "/data/mnist"))
"""A folder with MNIST as Parquet files, by the variable of that name; without it no such row."""
CASES: dict[str, tuple[int, float, str, float]] = {
    "digits, 10 clients": (10, 1.0, "digits", 1.2),
    "digits, 100 clients": (100, 1.0, "digits", 1.5),
    "MNIST, 1,000 clients, 10 %": (1000, 0.1, str(MNIST), 1.3),
}
"""Clients, their share in a round, the data, and the ratio asked for."""
ROUNDS = 12


def rounds(quick: bool) -> Iterator[Figure]:
    """A round of `cflower simulate` against the least PyTorch loop that computes the same."""
    for name, keys, goal in cases(quick):
        ours, theirs = list[float](), list[float]()
        for turn in range(2 if quick else 6):
            one, other = simulated(keys), bare(RunConfig.read(keys))
            if turn:  # the first one decodes the data and does not count
                ours, theirs = [*ours, one], [*theirs, other]
        yield Figure.of_times(f"a round, mlp, {name}", "the bare loop", ours, theirs, goal)


def cases(quick: bool) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Of each of `CASES` its name, the run config of conventional FL, and the ratio asked for."""
    quieten_flower()
    for name, (clients, share, dataset, goal) in CASES.items():
        if (quick and clients > 10) or (dataset == str(MNIST) and not MNIST.exists()):
            continue
        keys = {"model": "mlp", "dataset": dataset, "method": "federated", "personal": False}
        keys |= {"min-available-nodes": clients, "fraction-train": share}
        yield name, {**keys, "num-server-rounds": ROUNDS}, goal


def simulated(keys: Mapping[str, Any]) -> float:
    """CPU seconds of a round of `simulate`, run folder included: the median without the first."""
    ends, folder = list[float](), Path(mkdtemp(prefix="bench-"))

    def note(text: str) -> None:
        if text.startswith("Round "):
            ends.append(time.process_time())

    server = partial(run_server, say=note)
    config = RunConfig.read({**keys, "output-dir": str(folder)})
    try:
        clients = config.min_available_nodes
        simulate(client_app, clients, server_app=server, run_config=config.as_keys())
    finally:
        shutil.rmtree(folder)
    return float(median(np.diff(ends)[1:]))


def bare(config: RunConfig) -> float:
    """CPU seconds of a round of a loop over clients with one model, evaluation included."""
    torch.set_num_threads(1)
    clients, settings = config.min_available_nodes, config.part(DataSettings)
    data = [load_client_data(settings, i, clients, None) for i in range(clients)]
    parts = [[tensors(part) for part in (one.report, one.train)] for one in data]
    model = build_model(config.model, *data[0].train.sizes, seed=0)
    weights: list[Tensor] = list(model.parameters())
    common, rng = [w.detach().clone() for w in weights], np.random.default_rng(0)
    took = []
    for _ in range(ROUNDS):
        began, total, sums = time.process_time(), 0, [torch.zeros_like(w) for w in weights]
        for i in rng.choice(clients, round(config.fraction_train * clients), replace=False):
            (held_out, answers), (inputs, labels) = parts[i]
            with torch.no_grad():
                for weight, first in zip(weights, common, strict=True):
                    weight.copy_(first)
                logits = model(held_out)
                (logits.argmax(1) == answers).sum().item(), cross_entropy(logits, answers).item()
            descend(model, weights, inputs, labels, config)
            with torch.no_grad():
                for one, weight, first in zip(sums, weights, common, strict=True):
                    one.add_(weight - first, alpha=len(labels))
            total += len(labels)
        for first, one in zip(common, sums, strict=True):
            first.add_(one / total)
        took.append(time.process_time() - began)
    return median(took[2:])


def tensors(examples: Any) -> tuple[Tensor, Tensor]:
    """Inputs and labels."""
    return torch.tensor(examples.inputs), torch.tensor(examples.labels)


def descend(
    model: torch.nn.Module,
    weights: list[Tensor],
    inputs: Tensor,
    labels: Tensor,
    config: RunConfig,
) -> None:
    """One client's local epochs."""
    velocities: list[Tensor | None] = [None] * len(weights)
    for _ in range(config.local_epochs):
        for batch in torch.split(torch.randperm(len(labels)), config.batch_size):
            loss = cross_entropy(model(inputs[batch]), labels[batch])
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                sgd(
                    weights,
                    list(gradients),
                    velocities,
                    lr=config.learning_rate,
                    momentum=config.momentum,
                    weight_decay=0.0,
                    dampening=0.0,
                    nesterov=False,
                    maximize=False,
                    foreach=False,
                )


def written(quick: bool) -> Iterator[Figure]:
    """The recorder's part of a round in which 100 of many clients reply, small models."""
    quieten_flower()
    for clients, long in (100, 400), (10_000, 400), (100_000, 150):
        if quick and clients > 100:
            continue
        recorder, all_in_all = recorded(clients, 3 if quick else long)
        what = f"what a round writes, 100 of {clients:,} clients"
        yield Figure(what, "the whole round", recorder, all_in_all, 0.05)


def recorded(clients: int, num_rounds: int) -> tuple[float, float]:
    """CPU seconds of a recorder in a run's rounds, and of the rounds."""
    spent, ends, folder = list[float](), list[float](), Path(mkdtemp(prefix="bench-"))

    class Timed(Recorder):
        def on_round(self, report: Any) -> None:
            began = time.process_time()
            super().on_round(report)
            ends.append(time.process_time())
            spent.append(ends[-1] - began)

    def client(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 10, "loss": 1.0})
        content = RecordDict({"metrics": metrics})
        if message.metadata.message_type == "train":
            rng = np.random.default_rng([context.node_id, len(ends)])
            arrays = message.content.array_records["arrays"]["w"].numpy()
            moved = arrays + rng.standard_normal(arrays.shape, dtype=np.float32) / 100
            content["arrays"] = ArrayRecord({"w": Array(moved)})
        return Message(content, reply_to=message)

    recorder = Timed(folder, say=lambda text: None)
    strategy = ClusteredFL(
        NeverSplit(),
        fraction_train=100 / clients,
        fraction_evaluate=0.0,
        min_available_nodes=clients,
        observers=[recorder],
        personal=False,
        metric="loss",
    )
    arrays = ArrayRecord({"w": Array(np.zeros(650, np.float32))})
    try:
        simulate(client, clients, strategy=strategy, arrays=arrays, num_rounds=num_rounds)
    finally:
        shutil.rmtree(folder)
    return sum(spent[1:]), ends[-1] - ends[0]


def beginnings(quick: bool) -> Iterator[Figure]:
    """CPU seconds until a help text, until the result of a run is shown, and of imports."""
    times: Callable[[str], float] = partial(cpu_of, repetitions=1 if quick else 5)
    command = "from cflower.cli import app; app({}, standalone_mode=False)"
    yield Figure("cflower --help", "0.25 s asked for", times(command.format(["--help"])), 0.25, 1)
    folder = Path(mkdtemp(prefix="bench-"))
    try:
        keys = {"model": "mlp", "num-server-rounds": 2, "min-available-nodes": 4}
        config = RunConfig.read({**keys, "output-dir": str(folder), "personal": False})
        server = partial(run_server, say=lambda text: None)
        simulate(client_app, 4, server_app=server, run_config=config.as_keys())
        shown = times(command.format(["show", "--runs", str(folder)]))
    finally:
        shutil.rmtree(folder)
    yield Figure("cflower show", "0.5 s asked for", shown, 0.5, 1)
    ours = times("from cflower import ClusteredFL")
    theirs = times("from flwr.serverapp.strategy import FedAvg") + 0.1
    yield Figure("import of ClusteredFL", "that of FedAvg + 0.1 s", ours, theirs, 1)
