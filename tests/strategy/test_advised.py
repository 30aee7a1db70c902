"""An observed strategy trains as without the observation, and says whether its clients differ."""

import random
from logging import WARNING

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
)

from cflower import Advised, ClusteredFL, Recorder
from cflower.errors import ConfigError
from cflower.runs.record import RunRecord
from tests.strategy.quadratics import Quadratics, initial_arrays

FOUR = tuple(i // 5 for i in range(20))
STRATEGIES = {
    "FedAvg": FedAvg,
    "FedAvg with sampling": lambda: FedAvg(fraction_train=0.5, fraction_evaluate=0.3),
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedAdam": lambda: FedAdam(eta=0.05),
    "FedAvgM": lambda: FedAvgM(server_momentum=0.5),
    "FedMedian without evaluation": lambda: FedMedian(fraction_evaluate=0.0),
}


def started(strategy, clients, rounds=8):
    """The result of a run, with the same sampling of clients each time."""
    random.seed(7)
    first = initial_arrays()
    arrays = ArrayRecord(
        {key: first[key] for key in ("b", "w")}
    )  # FedAvgM needs the clients' order
    return strategy.start(clients.grid(), arrays, num_rounds=rounds)


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_an_observed_strategy_trains_to_the_same_bits_and_finds_the_groups(name):
    plain, observed = Quadratics(FOUR), Quadratics(FOUR)
    strategy = Advised(STRATEGIES[name]())
    before, after = started(STRATEGIES[name](), plain), started(strategy, observed)
    for key, array in before.arrays.items():
        np.testing.assert_array_equal(array.numpy(), after.arrays[key].numpy())
    assert before.train_metrics_clientapp == after.train_metrics_clientapp
    assert before.evaluate_metrics_clientapp == after.evaluate_metrics_clientapp
    sent = [
        [(seen.client, seen.server_round) for seen in clients.seen if seen.kind == "train"]
        for clients in (plain, observed)
    ]
    assert sent[0] == sent[1]
    assert len(strategy.groups) == len(observed.planted)
    assert all(any(part <= true for true in observed.planted) for part in map(set, strategy.groups))
    assert strategy.answer == "yes"


def test_alike_clients_have_no_groups_and_gain_nothing():
    strategy = Advised(FedAvg())
    started(strategy, Quadratics((0,) * 20, noise=0.1))
    assert strategy.groups == ()
    assert strategy.answer == "no"


def test_a_client_app_that_evaluates_nothing_leaves_the_answer_open():
    clients = Quadratics(FOUR)
    clients.app = lambda: without_evaluation(Quadratics.app(clients))
    strategy = Advised(FedAvg(fraction_evaluate=0.0))
    started(strategy, clients)
    assert {frozenset(group) for group in strategy.groups} == clients.planted
    assert (strategy.answer, strategy.reason) == (
        "cannot tell",
        "the ClientApp has no evaluate function",
    )


def without_evaluation(app):
    del app._registered_funcs["evaluate.default"]
    return app


def test_the_clients_are_asked_once_and_only_evaluate():
    plain, observed = Quadratics(FOUR), Quadratics(FOUR)
    started(FedAvg(), plain)
    started(Advised(FedAvg()), observed)
    kinds = [[seen.kind for seen in clients.seen] for clients in (plain, observed)]
    assert kinds[1].count("train") == kinds[0].count("train")
    assert kinds[1].count("evaluate") == kinds[0].count("evaluate") + 2 * 20


def test_clients_are_not_sent_models_without_the_noise_of_differential_privacy():
    private = DifferentialPrivacyClientSideFixedClipping
    for make in (
        lambda: private(Advised(FedAvg()), 0.0001, 10.0, 20),
        lambda: Advised(private(FedAvg(), 0.0001, 10.0, 20)),
    ):
        clients, strategy = Quadratics(FOUR), make()
        started(strategy, clients)
        advised = strategy if isinstance(strategy, Advised) else strategy.strategy
        assert {frozenset(group) for group in advised.groups} == clients.planted
        assert advised.answer == "cannot tell"
        assert sum(seen.kind == "evaluate" for seen in clients.seen) == 8 * 20


def test_a_failing_observation_does_not_end_the_run(monkeypatch, caplog):
    strategy = Advised(FedAvg())
    monkeypatch.setattr("cflower.strategy.advised.AutoCriterion.decide", None)
    with caplog.at_level(WARNING, "flwr"):
        result = started(strategy, Quadratics(FOUR))
    assert len(result.train_metrics_clientapp) == 8
    assert sum("without the observation" in line for line in caplog.messages) == 1
    assert strategy.answer == "cannot tell"


def test_a_recorder_writes_a_report_with_the_answer(tmp_path):
    recorder = Recorder(tmp_path)
    strategy = Advised(FedAvg(), observers=[recorder])
    started(strategy, Quadratics(FOUR))
    assert (recorder.path / "report.html").is_file()
    run = RunRecord(recorder.path)
    assert run.summary.not_split == strategy.advice
    assert len(run.summary.clients) == 20
    assert recorder.summary["finished"]
    assert not recorder.summary["splits"]


def test_a_second_run_begins_anew():
    strategy = Advised(FedAvg())
    started(strategy, Quadratics(FOUR))
    started(strategy, Quadratics((0,) * 20, noise=0.1), rounds=4)
    assert strategy.groups == ()
    assert strategy.answer == "no"


def test_what_is_no_strategy_of_one_model_is_refused():
    for wrong in (ClusteredFL(), None):
        with pytest.raises(ConfigError, match="expected a strategy that trains one model"):
            Advised(wrong)
