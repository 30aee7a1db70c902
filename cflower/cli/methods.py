"""The methods that could serve the clients of an app, each with the same number of trainings.

A method is a run of `ClusteredFL`: without splits it is conventional federated learning, with a
leaf for every client it is training alone. So a method needs no more of an app than what that gives
to its strategy's ``start``, and the clients get no other messages than in any run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from cflower.algorithm.criteria import NeverSplit
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import ParameterTree
from cflower.cli.started import TIMEOUT, Start, with_settings
from cflower.errors import ConfigError
from cflower.messages.layout import Layout
from cflower.messages.roll_call import RollCall
from cflower.ordering import counted
from cflower.recording.progress import Say, Steps
from cflower.recording.recorder import Recorder
from cflower.runs.records import Summary
from cflower.runs.ways import KINDS
from cflower.simulation.inline_grid import InlineGrid
from cflower.strategy.clustered_fl import ClusteredFL
from cflower.strategy.conditions import Conditions
from cflower.strategy.observers import Checkpoint, Observer, RunStart
from cflower.strategy.reports import FinalReport

SHARED = (
    *("fraction_train", "min_train_nodes", "min_available_nodes"),
    *("weighted_by_key", "arrayrecord_key", "configrecord_key"),
)
"""The settings of ``FedAvg`` that decide what the clients get and train."""
ALIKE: Mapping[str, Any] = {"fraction_evaluate": 0.0, "min_evaluate_nodes": 0}
"""Settings of all methods: their clients evaluate at the end, and where they have to decide."""
CONVENTIONAL: Mapping[str, Any] = {
    **{"trial_rounds": 0, "moving": False, "personal": False},
    # Conventional FL is eq. 2 as it is: a limit on honest minorities would make it worse.
    "max_influence": 0.0,
}
"""Settings of the methods without splits."""
TUNED = 0.2
"""The share of a client's trainings that are its own after conventional FL, if no client has a
personal step."""


class Effort(NamedTuple):
    """The rounds and trainings that each method has."""

    rounds: int
    """Rounds of methods without a model for each client."""
    trainings: int
    """Trainings of a client in these rounds, and in every method."""
    shared: int
    """The rounds after which clients train models of their own."""
    own: int
    """The trainings that are left for them then."""
    personal: bool
    """Whether the run with clusters can end with a personal step."""

    @property
    def in_words(self) -> str:
        """How the effort is counted, in a sentence."""
        times = counted(self.trainings, "time")
        text = f"With each method a client trains {times} on average"
        if self.own:
            text += f", the last {self.own} of them alone where it gets a model of its own"
        return f"{text}."


def clustered_strategy(strategy: Strategy) -> ClusteredFL:
    """The app's own strategy if it is `ClusteredFL`, else one with the same messages."""
    if isinstance(strategy, ClusteredFL):
        return with_settings(strategy, observers=(), **ALIKE)
    if not hasattr(strategy, "weighted_by_key"):
        raise ConfigError(
            f"The app starts {type(strategy).__name__}, but expected ClusteredFL, FedAvg or a "
            "strategy that inherits from one of them: take off what is wrapped around it."
        )
    settings = {name: getattr(strategy, name) for name in SHARED if hasattr(strategy, name)}
    return ClusteredFL(**settings, **ALIKE)


def effort_of(strategy: ClusteredFL, grid: InlineGrid, start: Start) -> Effort:
    """Divide the app's rounds so that a client trains equally often with every method."""
    rounds, share = start.num_rounds, strategy.fraction_train
    trainings = max(1, round(share * rounds))
    roll_call = strategy.roll_call or RollCall(timeout=TIMEOUT, asks=None)
    roll_call.gather(grid, 1)
    layout = Layout.of(start.arrays, strategy.untrained)
    conditions = Conditions(strategy, grid, roll_call, layout, alone=True)
    possible = strategy.rules.personal and not conditions.personal_obstacle(rounds)
    for shared in range(rounds, 0, -1) if possible else ():
        own, *_ = conditions.personal_trainings(shared, asked=0)
        if own and share * shared + own <= trainings + 0.5:
            return Effort(rounds, trainings, shared, trainings - round(share * shared), True)
    own = round(TUNED * trainings)
    return Effort(rounds, trainings, round((trainings - own) / share), own, False)


class Methods:
    """Runs the methods one after another; the run with clusters has the run folder."""

    def __init__(
        self,
        start: Start,
        grid: InlineGrid,
        recorder: Recorder,
        say: Say,
        also: Mapping[str, Start] = MappingProxyType({}),
    ) -> None:
        self._start, self._grid, self._recorder, self._say = start, grid, recorder, say
        self._strategy = clustered_strategy(start.strategy)
        self.effort = effort_of(self._strategy, grid, start)
        self._averaged = with_settings(self._strategy, criterion=NeverSplit(), **CONVENTIONAL)
        self._training: dict[str, Callable[[], FinalReport]] = {
            "federated": lambda: self._train(self._averaged, self.effort.rounds),
            "isolated": lambda: self._train(self._isolated, self.effort.trainings),
        }
        if self.effort.own:
            self._training["tuned"] = self._tuned
        if self.effort.personal:
            clusters = with_settings(self._strategy, personal=False)
            self._training["clustered"] = lambda: self._train(clusters, self.effort.rounds)
        self._training |= {name: partial(self._other, name, one) for name, one in also.items()}

    @property
    def _isolated(self) -> ClusteredFL:
        return with_settings(self._averaged, isolated=True)

    def run(self, done: Summary | None = None, *, resumed: bool = False) -> None:
        """Train what is not in ``done``, a finished run with clusters; what a ``resumed`` run sent
        before is not counted.
        """
        recorder, effort = self._recorder, self.effort
        measured = done.measured if done else {}
        recorder.baselines = {name: measured.get(name) for name in self._training}
        self._announce(1, "clusters, then personal models" if effort.personal else "clusters")
        clusters = with_settings(self._strategy, personal=effort.personal)
        self._train(clusters, effort.shared if effort.personal else effort.rounds, [recorder])
        sent = None if resumed else self._grid.num_bytes
        recorder.num_bytes = done.bytes if done else sent
        for number, (name, train) in enumerate(self._training.items(), start=2):
            if name not in measured:
                self._announce(number, KINDS[name].words)
                self._grid.forget()
                report = train()
                sent = 0 if name == "isolated" else self._grid.num_bytes
                recorder.add_baseline(name, report, sent)

    def _announce(self, number: int, words: str) -> None:
        self._say(f"Method {number} of {1 + len(self._training)}: {words}")

    def _train(
        self, strategy: ClusteredFL, rounds: int, observers: Sequence[Observer] = ()
    ) -> FinalReport:
        watched = [*observers, Steps(self._say)]
        report, self._common = self._start.train(self._grid, strategy, watched, rounds)
        return report

    def _tuned(self) -> FinalReport:
        """Conventional FL; in its last rounds each client trains a model of its own."""
        shared, own = self.effort.shared, self.effort.own
        federated = self._train(self._averaged, shared)
        sent = self._grid.num_bytes
        going_on = GoingOn(self._common, shared)
        report = self._train(self._isolated, shared + own, [going_on])
        self._grid.num_bytes = sent  # training alone needs no messages
        trained = federated.failures.trainings
        return replace(report, failures=report.failures.added(trainings=trained))

    def _other(self, method: str, start: Start) -> FinalReport:
        """A method of the literature, as cflower's own app starts it."""
        strategy = with_settings(clustered_strategy(start.strategy), **CONVENTIONAL)
        observers = [Steps(self._say)]
        times = 2 if method in ("ditto", "fedrep") else 1  # trainings in a round
        rounds = max(1, self.effort.rounds // times)
        report, _ = start.train(self._grid, strategy, observers, rounds)
        more = report.failures.trainings if times == 2 else {}
        return replace(report, failures=report.failures.added(trainings=more))


class GoingOn(Observer):
    """Lets the clients go on from a model after a round, each by itself."""

    def __init__(self, arrays: ArrayRecord, server_round: int) -> None:
        self._arrays, self._round = arrays, server_round

    def on_start(self, run: RunStart) -> Checkpoint:
        model = run.layout.weights(self._arrays)
        tree = ParameterTree.initial(model, run.facts, isolated=True)
        return Checkpoint(self._round, CFLState(tree))
