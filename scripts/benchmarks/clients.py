"""What `bench.py` measures of whole rounds in one process: `cflower simulate` and a bare loop."""

import itertools
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from command import quieten_flower
from torch.nn.functional import cross_entropy

from benchmarks.measure import Figure, Times, compared
from cflower import simulate
from cflower.client_app import app as client_app
from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.settings import DataSettings
from cflower.learning.models import build_model
from cflower.server_app import run

State = dict[str, torch.Tensor]
ALIKE = {"num-groups": 1}
"""Nothing to split: clients of a split on trial train two models, which the bare loop does not."""


def simulation(quick: bool) -> Iterator[Figure]:
    """A round of `cflower simulate` on the digits against the same work in a bare loop."""
    for clients in (3,) if quick else (10, 100):
        rounds, repetitions = (2, 1) if quick else (5, 4)
        simulated: list[Times] = []
        bare: list[Times] = []
        loop = BareLoop(clients, RunConfig.read(ALIKE))
        loop.round()
        for _ in range(repetitions):
            simulated += simulated_rounds(clients, rounds, **ALIKE)
            bare += [timed_round(loop) for _ in range(rounds - 1)]
        what = f"round of `cflower simulate`, digits, {clients} clients"
        yield compared(what, "bare PyTorch loop", middle(simulated), middle(bare), 1.15)


def middle(times: list[Times]) -> Times:
    """The median of each."""
    return Times(median(t.wall for t in times), median(t.cpu for t in times))


def simulated_rounds(clients: int, rounds: int, **keys: Any) -> list[Times]:
    """What every round but the first took, from one line of progress to the next.

    So the run folder, its checkpoint and its report of progress are in it.
    """
    quieten_flower()
    marks: list[tuple[float, float]] = []

    def say(text: str) -> None:
        if text.startswith("Round "):
            marks.append((time.perf_counter(), time.process_time()))

    with tempfile.TemporaryDirectory() as folder:
        keys = {"num-server-rounds": rounds, "min-available-nodes": clients, **keys}
        config = RunConfig.read({**keys, "output-dir": folder}).as_keys()
        simulate(client_app, clients, server_app=partial(run, say=say), run_config=config)
        assert list(Path(folder).glob("*/summary.json"))
    return [Times(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(marks)]


class BareLoop:
    """Federated averaging as one would write it without any framework, with the same settings.

    Every client evaluates the model it gets and trains it, as cflower's does; then the models
    are averaged. All data are tensors from the start.
    """

    def __init__(self, clients: int, config: RunConfig | None = None) -> None:
        torch.set_num_threads(1)
        self.config = config or RunConfig()
        self.clients = []
        for partition in range(clients):
            data = load_client_data(self.config.part(DataSettings), partition, clients)
            examples = data.train, data.report
            self.clients.append([torch.tensor(a) for e in examples for a in (e.inputs, e.labels)])
        first = data.train
        self.model = build_model(self.config.model, first.input_shape, first.num_classes, seed=0)
        self.state: State = {k: v.clone() for k, v in self.model.state_dict().items()}

    def round(self) -> None:
        """One round over all clients."""
        total = sum(len(labels) for _, labels, _, _ in self.clients)
        mean = {key: torch.zeros_like(value) for key, value in self.state.items()}
        for inputs, labels, held_out, answers in self.clients:
            self.model.load_state_dict(self.state)
            self.model.eval()
            with torch.no_grad():
                logits = self.model(held_out)
                cross_entropy(logits, answers).item()
                (logits.argmax(dim=1) == answers).float().mean().item()
            self.train(inputs, labels)
            for key, value in self.model.state_dict().items():
                mean[key] += value * (len(labels) / total)
        self.state = mean

    def train(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        """One client's epochs of SGD."""
        config = self.config
        self.model.train()
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=config.learning_rate, momentum=config.momentum
        )
        for _ in range(config.local_epochs):
            for batch in torch.randperm(len(labels)).split(config.batch_size):
                optimizer.zero_grad()
                loss = cross_entropy(self.model(inputs[batch]), labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()


def timed_round(loop: BareLoop) -> Times:
    """What one round of it takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    loop.round()
    return Times(time.perf_counter() - wall, time.process_time() - cpu)
