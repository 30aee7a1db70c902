"""How a strategy is set up: `ClusteredFL`'s parameters, and how it tells of them."""

import math
from collections.abc import Callable, Sequence
from logging import INFO
from typing import Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy
from flwr.supercore import log

from cflower.algorithm.auto.criterion import AutoCriterion
from cflower.algorithm.criteria import Criterion
from cflower.algorithm.optimizers import ServerOptimizer
from cflower.algorithm.robust_mean import MOST
from cflower.algorithm.round import CFL, Weighting
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import ParameterTree, Selection
from cflower.errors import ConfigError
from cflower.messages.exchange import Closing
from cflower.messages.failures import FailureRecord
from cflower.messages.layout import UNTRAINED, Layout
from cflower.messages.messenger import Asked, ClientMessenger, Keys
from cflower.messages.replies import Metrics
from cflower.messages.roll_call import RollCall
from cflower.strategy.observers import Observer, Observers
from cflower.strategy.reports import FinalReport, Metric
from cflower.strategy.settings import described
from cflower.strategy.training_round import TrainingRound


class StrategySettings(Strategy):
    """What stays the same through a run; see `ClusteredFL`, which documents the parameters."""

    def __init__(
        self,
        criterion: Criterion | None = None,
        *,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
        evaluate_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
        optimizer: ServerOptimizer | None = None,
        weighting: Weighting = "examples",
        similarity_layers: str = "*",
        projection_dim: int = 16384,
        untrained: Sequence[str] = UNTRAINED,
        max_norm_ratio: float = 0.0,
        max_influence: float = MOST,
        exclude_after: int = 5,
        round_share: float = 1.0,
        round_seconds: float = 0.0,
        isolated: bool = False,
        trial_rounds: int | None = None,
        moving: bool | None = None,
        inner_interval: int | None = None,
        selection: Selection = "leaf",
        seed: int = 0,
        metric: str = "accuracy",
        higher_is_better: bool | None = None,
        observers: Sequence[Observer] = (),
        roll_call: RollCall | None = None,
    ) -> None:
        self.criterion = criterion or AutoCriterion()
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_evaluate_nodes = min_train_nodes, min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.keys = Keys(weighted_by_key, arrayrecord_key, configrecord_key)
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self.optimizer, self.weighting = optimizer or ServerOptimizer(), weighting
        self.similarity_layers, self.projection_dim = similarity_layers, projection_dim
        self.untrained = tuple(untrained)
        self.max_norm_ratio, self.max_influence = max_norm_ratio, max_influence
        self.exclude_after = exclude_after
        self.round_share, self.round_seconds = round_share, round_seconds
        self.isolated, self.seed = isolated, seed
        self.trial_rounds: int = own(self.criterion, "trial_rounds", trial_rounds)
        self.inner_interval: int = own(self.criterion, "inner_interval", inner_interval)
        self.moving = bool(own(self.criterion, "moving", moving))
        self.selection: Selection = selection
        self.metric = Metric.of(metric, higher_is_better)
        # A busy machine takes minutes to start a simulation; FedAvg would wait forever.
        self.roll_call = roll_call or RollCall(timeout=300.0, asks=None)
        self.state = CFLState(ParameterTree({}))
        self.layout = Layout((), np.dtype(np.float32))
        self.failures = FailureRecord()
        self.final_report: FinalReport | None = None
        self._observers = Observers(observers)
        self._cfl: CFL | None = None
        self._round: TrainingRound | None = None
        self._probed: dict[str, str] = {}
        self._closing = Closing(round_share, round_seconds or math.inf)
        self._to_ask_again: tuple[Asked, ...] = ()
        self._by_round: dict[int, Metrics] = {}
        self._finished_rounds = 0
        self._own_start = False
        self._returned: ArrayRecord | None = None
        self._messenger = ClientMessenger(self.roll_call, self.keys)

    @property
    def settings(self) -> dict[str, Any]:
        """How the run is set up, as plain values under kebab-case keys."""
        return {
            "method": self._method,
            "criterion": described(self.criterion),
            "server-optimizer": described(self.optimizer),
            "weighting": self.weighting,
            "fraction-train": self.fraction_train,
            "fraction-evaluate": self.fraction_evaluate,
            "similarity-layers": self.similarity_layers,
            "projection-dim": self.projection_dim,
            "untrained": list(self.untrained),
            "max-norm-ratio": self.max_norm_ratio,
            "max-influence": self.max_influence,
            "exclude-after": self.exclude_after,
            "round-share": self.round_share,
            "round-seconds": self.round_seconds,
            "trial-rounds": self.trial_rounds,
            "moving": self.moving,
            "inner-interval": self.inner_interval,
            "selection": self.selection,
            "seed": self.seed,
            "metric": self.metric.name,
            "higher-is-better": self.metric.higher_is_better,
            "arrayrecord-key": self.keys.arrays,
            "configrecord-key": self.keys.config,
            "weighted-by-key": self.keys.weighted_by,
        }

    @property
    def _method(self) -> str:
        if self.isolated:
            return "isolated"
        return "federated" if described(self.criterion)["name"] == "never" else "clustered"

    def initialize_parameters(self, client_manager: object) -> NoReturn:
        """Refuse Flower's older workflows, with them SecAgg+: they begin with this call.

        Raises
        ------
        ConfigError
        """
        raise ConfigError(
            "ClusteredFL cannot run under SecAggPlusWorkflow or another of Flower's older "
            "workflows: secure aggregation shows the server only sums of updates, and clusters "
            "are found by comparing single ones. Call ClusteredFL.start; against a curious server "
            "there are LocalDpMod and cflower.PermutationMod."
        )

    def summary(self) -> None:
        """Log the effective settings."""
        log(INFO, "\t├──> Clusters split by: %s", self.criterion)
        log(INFO, "\t├──> Within a cluster: %s, weighted by %s", self.optimizer, self.weighting)
        log(
            INFO,
            "\t└──> Sampled per cluster: train (%.2f) | evaluate (%.2f)",
            self.fraction_train,
            self.fraction_evaluate,
        )


def own(criterion: Criterion, name: str, given: int | None) -> int:
    """What is given, else what the criterion has by that name, else 0."""
    return getattr(criterion, name, 0) if given is None else given
