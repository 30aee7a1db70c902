"""One `ClusteredFL` in one run after another: each run is that of a new one."""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from cflower import AutoCriterion, ClusteredFL, Observer, Recorder
from cflower.errors import ConfigError
from cflower.messages.client_names import answer
from tests.strategy.chaos import picture
from tests.strategy.quadratics import CRITERION, Quadratics, initial_arrays

GROUPS, ROUNDS = (0, 1, 0, 1, 0, 1), 6
Outcome = dict[str, Any]


class Sites(Quadratics):
    """Other clients at the same node ids."""

    def _answer(self, message, context):
        return answer(message, client_id=f"site-{context.node_config['partition-id']}")


def strategy_of() -> ClusteredFL:
    return ClusteredFL(CRITERION, personal=True, fraction_train=0.9)


def started(strategy: ClusteredFL, clients: Quadratics, rounds: int = ROUNDS, **start: Any) -> Any:
    return strategy.start(clients.grid(), initial_arrays(), rounds, **start)


def plain(strategy: ClusteredFL) -> Outcome:
    clients = Quadratics(GROUPS)
    return outcome(strategy, clients, started(strategy, clients))


def other_clients(strategy: ClusteredFL) -> Outcome:
    clients = Sites((2, 3, 2, 3, 2, 3, 2))
    return outcome(strategy, clients, started(strategy, clients, 4))


def without_evaluation(strategy: ClusteredFL) -> Outcome:
    """Clients without names, and an app that cannot evaluate."""
    clients = Quadratics(GROUPS, roll_call=False)
    grid = clients.grid()
    del grid.client_app._registered_funcs["evaluate.default"]
    return outcome(strategy, clients, strategy.start(grid, initial_arrays(), ROUNDS))


def other_settings(strategy: ClusteredFL) -> Outcome:
    """They are changed before the start, so that other defaults hold."""
    before = strategy.criterion, strategy.fraction_train, strategy.metric
    strategy.criterion, strategy.fraction_train, strategy.metric = AutoCriterion(), 0.5, "loss"
    clients = Quadratics(GROUPS)
    try:
        return outcome(strategy, clients, started(strategy, clients, 12))
    finally:
        strategy.criterion, strategy.fraction_train, strategy.metric = before


def broken_off(strategy: ClusteredFL) -> Outcome:
    """The server fails in the middle of the run."""

    def fails(server_round, arrays):
        if server_round == 2:
            raise KeyboardInterrupt

    clients = Quadratics(GROUPS)
    with suppress(KeyboardInterrupt):
        started(strategy, clients, evaluate_fn=fails)
    return outcome(strategy, clients)


def resumed(strategy: ClusteredFL) -> Outcome:
    clients = Quadratics(GROUPS)
    with TemporaryDirectory() as folder:
        first = strategy_of()
        first.observers = [recorder := Recorder(folder, say=lambda text: None)]
        started(first, Quadratics(GROUPS), 3)
        again = Recorder(folder, resume=recorder.path.name, say=lambda text: None)
        strategy.observers = [again]
        try:
            return outcome(strategy, clients, started(strategy, clients))
        finally:
            strategy.observers = []


def private(strategy: ClusteredFL) -> Outcome:
    """Flower's wrapper adds noise, which is drawn from NumPy's global generator."""
    np.random.seed(7)  # noqa: NPY002
    clients = Quadratics(GROUPS)
    wrapper = DifferentialPrivacyClientSideFixedClipping(strategy, 1.0, 5.0, len(GROUPS))
    return outcome(strategy, clients, started(wrapper, clients))


def private_and_sites(strategy: ClusteredFL) -> Outcome:
    np.random.seed(8)  # noqa: NPY002
    clients = Sites((2, 3, 2, 3))
    wrapper = DifferentialPrivacyClientSideFixedClipping(strategy, 0.1, 5.0, len(GROUPS))
    return outcome(strategy, clients, started(wrapper, clients, 2))


def clipped_on_the_server(strategy: ClusteredFL) -> Outcome:
    """Is refused, and leaves the run before as it is."""
    wrapper = DifferentialPrivacyServerSideFixedClipping(strategy, 1.0, 5.0, len(GROUPS))
    clients = Quadratics(GROUPS)
    with pytest.raises(ConfigError, match="ClientSide"):
        started(wrapper, clients)
    return {"seen": len(clients.seen)}


KINDS: dict[str, Callable[[ClusteredFL], Outcome]] = {
    run.__name__: run
    for run in (
        plain,
        other_clients,
        without_evaluation,
        other_settings,
        broken_off,
        resumed,
        private,
        private_and_sites,
        clipped_on_the_server,
    )
}


def outcome(strategy: ClusteredFL, clients: Quadratics, result: Any = None) -> Outcome:
    """All that a run sends and leaves, comparable bit by bit."""
    report = strategy.final_report
    return {
        "state": picture(strategy),
        "sent": [(*seen[:4], seen.vector.tobytes()) for seen in clients.seen],
        "settings": strategy.settings,
        "failures": {n: one._replace(reading=0) for n, one in strategy.failures.clients.items()},
        "models": {name: arrays["w"].data for name, arrays in strategy.models.items()},
        "served": {name: strategy.model_of(name)["b"].data for name in strategy.tree.clients},
        "report": report and (report.metrics, report.by_round, report.problems),
        "result": result and metrics_of(result),
    }


def metrics_of(result: Any) -> list[Any]:
    names = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp")
    found: list[Any] = [result.arrays["w"].data]
    return found + [{n: dict(m) for n, m in getattr(result, name).items()} for name in names]


@cache
def of_a_new_one(kind: str) -> Outcome:
    return KINDS[kind](strategy_of())


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.permutations(sorted(KINDS)))
def test_one_strategy_in_any_order_of_runs_is_as_a_new_one_for_each(order):
    strategy = strategy_of()
    for kind in order:
        assert KINDS[kind](strategy) == of_a_new_one(kind), kind


def test_the_results_of_a_run_stay_until_the_next_one_begins():
    strategy = strategy_of()
    before = plain(strategy)
    clipped_on_the_server(strategy)
    assert picture(strategy) == before["state"]
    assert strategy.cluster_of("partition-1") != strategy.cluster_of("partition-0")


def test_noise_is_added_after_a_start_that_failed_before_its_first_round():
    def fails():
        raise KeyboardInterrupt

    strategy, grid = strategy_of(), Quadratics(GROUPS).grid()
    strategy.summary = fails
    with suppress(KeyboardInterrupt):
        strategy.start(grid, initial_arrays(), ROUNDS)
    del strategy.summary
    wrapper = DifferentialPrivacyClientSideFixedClipping(strategy, 100.0, 5.0, len(GROUPS))
    wrapper.start(grid, initial_arrays(), 2)
    noisy = [np.linalg.norm(leaf.model.trained) for leaf in strategy.tree.leaves]
    assert min(noisy) > 50


def test_a_loop_of_the_app_s_own_that_begins_with_another_model_begins_another_run():
    class Starts(Observer):
        number = 0

        def on_start(self, run):
            self.number += 1

    strategy, grid, starts = strategy_of(), Quadratics(GROUPS).grid(), Starts()
    strategy.observers = [starts]
    first, other = initial_arrays(), ArrayRecord({"w": Array(np.ones(3)), "b": Array(np.ones(2))})
    for arrays, runs in (first, 1), (first, 1), (other, 2), (other, 2):
        # A run that was broken off before its first aggregation goes on with the same model only.
        messages = [*strategy.configure_train(1, arrays, ConfigRecord(), grid)]
        assert starts.number == runs
        for message in messages:
            assert message.content["arrays"]["w"].data == arrays["w"].data


def test_an_evaluation_before_the_first_training_is_not_of_the_run_before():
    strategy, clients = strategy_of(), Quadratics(GROUPS)
    started(strategy, clients)
    asked = strategy.configure_evaluate(0, initial_arrays(), ConfigRecord(), clients.grid())
    assert list(asked) == []
    assert strategy.aggregate_evaluate(0, []) is None


@pytest.mark.parametrize("kind", ["other_settings", "private"])
def test_updates_that_are_computed_when_they_are_read_give_the_same_run(kind, monkeypatch):
    monkeypatch.setattr("cflower.messages.layout.HUGE", 0)
    assert KINDS[kind](strategy_of()) == of_a_new_one(kind)
