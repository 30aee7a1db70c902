"""A federation watched round by round, in one process: ClusteredFL with cflower's own ClientApp."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flwr.app import ArrayRecord

from cflower import server_app, simulate
from cflower.algorithm.criteria import Criterion, Decision, Evidence, Memory, NeverSplit
from cflower.client_app import app as client_app
from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.prepared import ClientData
from cflower.data.settings import DataSettings
from cflower.messages.data_spec import DataSpec
from cflower.strategy.clustered_fl import ClusteredFL
from cflower.strategy.observers import Observer
from cflower.strategy.reports import FinalReport, RoundReport

Keys = Mapping[str, Any]
"""Run-config keys with their values; those not named have the config's defaults."""


@dataclass(frozen=True)
class Watch:
    """Another criterion's decisions, each with the similarity matrix of its round's updates."""

    inner: Criterion = field(default_factory=NeverSplit)

    def decide(self, evidence: Evidence, memory: Memory) -> tuple[Decision, Memory]:
        """What the other decides, with the matrix."""
        decision, memory = self.inner.decide(evidence, memory)
        if not evidence.clients:
            return decision, memory
        seen = {"clients": evidence.clients, "similarity": evidence.similarity}
        return replace(decision, **seen), memory

    def inherit(self, memory: Memory) -> Memory:
        """What the other hands down."""
        return self.inner.inherit(memory)


def federate(
    keys: Keys,
    on_round: Callable[[RoundReport, ClusteredFL], None],
    criterion: Criterion | None = None,
    start: ArrayRecord | None = None,
) -> FinalReport:
    """Train a federation from `start`, else from the model that the seed gives.

    Parameters
    ----------
    keys : mapping
        ``min-available-nodes`` is the number of clients.
    on_round : callable
        Called after every round with its report and the strategy, whose ``layout`` unpacks models.
    criterion : Criterion, optional
        When to split; never if not given. Its decisions come with similarity matrices.
    """
    config = RunConfig.read(keys)
    observer = Observer()
    observer.on_round = lambda report: on_round(report, strategy)  # type: ignore[method-assign]
    strategy = ClusteredFL(
        Watch(criterion or NeverSplit()),
        fraction_evaluate=0.0,
        min_evaluate_nodes=0,
        min_available_nodes=config.min_available_nodes,
        weighting=config.weighting,
        projection_dim=config.projection_dim,
        seed=config.seed,
        observers=[observer],
    )
    simulate(
        client_app,
        config.min_available_nodes,
        strategy=strategy,
        arrays=start or initial_model(keys),
        num_rounds=config.num_server_rounds,
        run_config=config.as_keys(),
    )
    assert strategy.final_report is not None  # `start` has returned
    return strategy.final_report


def initial_model(keys: Keys) -> ArrayRecord:
    """The model that the seed gives, sized to the clients' data."""
    examples = client_data(keys, 0).train
    kind = DataSpec(examples.input_shape, examples.class_names)
    return server_app.initial_model(RunConfig.read(keys), kind)


def client_data(keys: Keys, partition: int) -> ClientData:
    """What one client of such a federation holds."""
    config = RunConfig.read(keys)
    return load_client_data(config.part(DataSettings), partition, config.min_available_nodes)
