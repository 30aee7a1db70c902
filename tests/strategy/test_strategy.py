"""`ClusteredFL` on whole runs in one process, with ClientApps in NumPy."""

import re
from collections import Counter
from logging import INFO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from cflower import ClusteredFL, NormCriterion, Recorder, simulate
from cflower.client_app import app as client_app
from cflower.config import RunConfig
from cflower.errors import ConfigError, FederationError
from cflower.messages.client_names import ROLL_CALL
from cflower.messages.failures import FailureRecord
from cflower.server_app import app as server_app
from cflower.simulation.inline_grid import InlineGrid
from cflower.strategy.observers import Checkpoint, Observer
from tests.strategy.chaos import BAD, ChaosGrid, Clock, Machines, Plan, picture
from tests.strategy.quadratics import (
    CENTERS,
    Halves,
    Quadratics,
    Reports,
    clusters_of,
    drawn_to_the_opposite,
    fails_in,
    initial_arrays,
    run,
    strategy_of,
    vector_of,
    without,
)

GROUPS = (0, 1, 0, 1, 0, 1)


@pytest.mark.parametrize("groups", [GROUPS, (0, 1, 2, 0, 1, 2, 1), (3, 2, 1, 0) * 2])
def test_the_planted_groups_are_detected_and_served(groups):
    clients = Quadratics(groups)
    strategy, _, _ = run(clients, num_rounds=30)
    assert clusters_of(strategy) == clients.planted
    for client, group in enumerate(groups):
        model = strategy.tree.leaf_of(clients.name(client)).model.trained
        np.testing.assert_allclose(model, CENTERS[group], atol=0.02)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_each_client_always_gets_the_model_of_its_own_cluster(fraction):
    clients = Quadratics((0, 1, 2, 3) * 2)
    _, _, reports = run(clients, num_rounds=30, fraction_train=fraction, seed=2)
    for seen in clients.seen:
        name, report = clients.name(seen.client), reports[seen.server_round - 1]
        if seen.kind == "train":
            before = reports[seen.server_round - 2].state.tree if seen.server_round > 1 else None
            expected = before.training_cluster(name) if before else report.trained.root
        elif seen.cluster == "0":
            expected = report.state.tree.root
        else:
            expected = report.state.tree.leaf_of(name)
        assert seen.cluster == expected.name
        np.testing.assert_array_equal(seen.vector, expected.model.trained)
    assert len(reports[-1].state.tree.leaves) >= 3


def test_a_newcomer_is_logged_in_the_leaf_that_it_gets(caplog):
    caplog.set_level(INFO, "flwr")
    grid = ChaosGrid(Machines((0, 1, 0, 1, 0, 1, 1, 2)), Plan(away={6: range(8), 7: range(8)}))
    strategy = strategy_of(observers=[Clock(grid)])
    strategy.start(grid, initial_arrays(), 10)
    assert clusters_of(strategy) == Quadratics((0, 1, 0, 1, 0, 1, 1, 2)).planted
    for client in ("partition-6", "partition-7"):
        assert f"Client {client} is placed in {strategy.cluster_of(client)}: " in caplog.text


def test_the_log_begins_with_the_settings_that_are_not_the_defaults(caplog):
    caplog.set_level(INFO, "flwr")
    grid, secret = Quadratics(GROUPS).grid(), ConfigRecord({"key": b"secret"})
    config = ConfigRecord({"lr": 0.1, **secret})
    for settings in {}, {"criterion": NormCriterion(eps1=0.5), "seed": 3}:
        ClusteredFL(**settings).start(
            grid, initial_arrays(), 1, train_config=secret, evaluate_config=config
        )
    begins = ["ClusteredFL: 1 round, 6 of 6 connected clients, a model of 0.00 MB."]
    begins += [line for line in caplog.messages if line.startswith(("Settings", "Config"))]
    first, other, changed, again = begins
    assert first in caplog.messages
    assert other == again == "Config of evaluate messages: lr 0.1."
    assert changed == (
        "Settings that are not the defaults: criterion norms (eps1 0.5, eps2 1.75, gamma-max 0.68, "
        "linkage single, min-cluster-size 2, heard-share 0.8), trial-rounds 0, moving False, "
        "personal False, seed 3."
    )


@pytest.mark.parametrize("observers", [[], [Reports()]])
def test_the_log_ends_with_the_clusters_unless_observers_show_them(caplog, observers):
    caplog.set_level(INFO, "flwr")
    grid = Quadratics(GROUPS).grid()
    result = strategy_of(observers=observers).start(grid, initial_arrays(), 1)
    assert ("Clusters:" in caplog.text) is not bool(observers)
    assert "0: 6 clients" in repr(result) and "partition-5" in repr(result)


def test_an_unknown_client_is_an_error_with_some_known_ones():
    strategy, _, _ = run(Quadratics(GROUPS), num_rounds=1)
    with pytest.raises(FederationError, match=r"partition-0, .*, partition-4 and 1 more are"):
        strategy.cluster_of("partition-9")


@pytest.mark.slow
@pytest.mark.parametrize("projection_dim", [0, 4])
@pytest.mark.parametrize("rule", ["fedavg", "fedmedian", "fedtrimmedavg"])
def test_a_median_withstands_two_of_six_members_of_a_group(rule, projection_dim):
    bad = (0, 1)
    clients = Quadratics((0,) * 6 + (1,) * 6, spoil=dict.fromkeys(bad, drawn_to_the_opposite))
    options = {"trial_rounds": 0, "projection_dim": projection_dim}
    strategy, _, _ = run(clients, 16, criterion=Halves(), aggregation=rule, beta=0.4, **options)
    assert strategy.tree.root.split_round == 3
    errors = [
        np.linalg.norm(strategy.tree.leaf_of(clients.name(i)).model.trained - CENTERS[group])
        for i, group in enumerate(clients.groups)
    ]
    assert max(errors[6:]) < 0.01
    assert bool(max(errors[2:6]) < 0.02) is (rule != "fedavg")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"aggregation": "FedMedian"}, "aggregation = 'FedMedian' is not known: did you mean"),
        ({"beta": 0.6, "aggregation": "fedtrimmedavg"}, "beta=0.6, but expected a number > 0"),
        ({"selection": "best-of"}, "selection = 'best-of' is not known: did you mean 'best'"),
        ({"fraction_train": 2}, "Got fraction_train=2, but expected a number > 0 and <= 1."),
        ({"round_share": "all"}, "Got round_share='all', but expected a number > 0 and <= 1."),
        ({"trial_rounds": -3}, "Got trial_rounds=-3, but expected a whole number >= 0."),
        ({"seed": True}, "Got seed=True, but expected a whole number >= 0."),
        ({"fraction_train": True}, "Got fraction_train=True, but expected a number > 0 and <= 1."),
        ({"seed": 1.5}, "Got seed=1.5, but expected a whole number >= 0."),
        ({"personal": "yes"}, "Got personal='yes', but expected true or false."),
        ({"metric": 3}, "Got metric=3, but expected a text in quotes."),
        ({"untrained": "*bn*"}, "Got untrained='*bn*', but expected a list, such as"),
        ({"observers": print}, "but expected a list, such as [Recorder()]."),
        ({"observers": [Recorder]}, "Recorder'> in observers, but expected an Observer, such as"),
        ({"observers": [print]}, "in observers, but expected an Observer, such as Recorder()."),
        ({"aggregation": print}, "print>, but expected an object with the methods of Aggregator"),
        ({"criterion": "auto"}, "Got criterion='auto', but expected an object with the methods"),
        ({"optimizer": "fedadam"}, "Got optimizer='fedadam', but expected an object with"),
        ({"max_influence": 0.5}, "Got max_influence=0.5, but expected 0 (no limit) or a number"),
    ],
)
def test_settings_are_checked_before_anything_is_trained(setting, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        ClusteredFL(**setting)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("error", "is an error: ValueError: boom"),
        ("nan", "has NaN or infinity in b"),
        ("no arrays", "has 0 ArrayRecords instead of one"),
        ("no num-examples", "lacks the metric 'num-examples'"),
    ],
)
def test_a_bad_reply_is_set_aside_with_its_reason_and_the_others_are_served(kind, problem):
    def spoil(message, content, server_round):
        error = BAD[kind](content)
        return Message(error if isinstance(error, Error) else content, reply_to=message)

    clients, others = Quadratics(GROUPS, spoil={2: spoil}), (0, 1, 3, 4, 5)
    strategy, result, reports = run(clients, exclude_after=0)
    for report in reports:
        assert report.problems["partition-2"] == problem
        assert set(report.trained_on) == {clients.name(i) for i in others}
    assert without(clusters_of(strategy), "partition-2") == without(clients.planted, "partition-2")
    assert "partition-2" in strategy.tree.clients
    for i in others:
        model = strategy.tree.leaf_of(clients.name(i)).model.trained
        np.testing.assert_allclose(model, CENTERS[GROUPS[i]], atol=0.05)
    assert np.isfinite(vector_of(result.arrays)).all()


def test_a_client_that_fails_in_evaluation_is_still_trained():
    clients = Quadratics(GROUPS, spoil_evaluate={1: fails_in(*range(1, 13))})
    strategy, result, _ = run(clients)
    assert clusters_of(strategy) == clients.planted
    assert set(strategy.final_report.clients) == {clients.name(i) for i in (0, 2, 3, 4, 5)}
    assert "boom" in strategy.final_report.problems["partition-1"]
    assert set(result.evaluate_metrics_clientapp) == set(range(1, 13))


def test_a_run_survives_two_rounds_in_which_all_clients_fail():
    clients = Quadratics(GROUPS, spoil=dict.fromkeys(range(6), fails_in(3, 4)))
    strategy, result, reports = run(clients, num_rounds=14)
    assert clusters_of(strategy) == clients.planted
    assert set(result.train_metrics_clientapp) == set(range(1, 15)) - {3, 4}
    assert len({id(report.state.tree.root.model) for report in reports[1:4]}) == 1


def test_a_model_that_is_not_finite_is_refused_before_any_training():
    arrays = initial_arrays()
    arrays["b"] = Array(np.full(4, np.nan, np.float32))
    clients = Quadratics(GROUPS)
    with pytest.raises(ConfigError, match=r"initial model has NaN"):
        run(clients, arrays=arrays)
    assert clients.seen == []


def test_texts_are_no_model_and_the_strategy_has_keys_of_its_own():
    clients, words = Quadratics(GROUPS), ArrayRecord({"b": Array(np.array(["a", "b"]))})
    with pytest.raises(ConfigError, match="array 'b' has dtype <U1"):
        ClusteredFL().start(clients.grid(), words)
    config = ConfigRecord({"part": "left"})
    with pytest.raises(ConfigError, match=r"The config has part, ClusteredFL's own key"):
        ClusteredFL().start(clients.grid(), initial_arrays(), train_config=config)
    assert clients.seen == []


def test_an_aggregation_function_without_a_result_loses_no_model():
    _, result, _ = run(Quadratics(GROUPS), 2, train_metrics_aggr_fn=lambda contents, key: None)
    assert np.abs(vector_of(result.arrays)).max() > 0


def test_no_record_is_shared_between_messages():
    clients = Quadratics(GROUPS)
    run(clients, num_rounds=4)
    records = [r for content in clients.received for r in (content, *content.values())]
    assert len({id(record) for record in records}) == len(records)


def test_the_callers_configs_and_model_are_not_changed():
    train, evaluate, arrays = ConfigRecord({"lr": 0.1}), ConfigRecord({"k": 2}), initial_arrays()
    clients = Quadratics(GROUPS)
    configs = {"train_config": train, "evaluate_config": evaluate}
    run(clients, arrays=arrays, num_rounds=2, start=configs)
    assert dict(train) == {"lr": 0.1}
    assert dict(evaluate) == {"k": 2}
    np.testing.assert_array_equal(vector_of(arrays), np.zeros(16))
    kinds = zip(clients.seen, clients.received, strict=True)
    for seen, content in kinds:
        assert ("lr" in content["config"]) == (seen.kind == "train")
        assert ("k" in content["config"]) == (seen.kind == "evaluate")


def test_statistics_are_the_middle_ones_and_not_compared():
    plain, _, _ = run(Quadratics(GROUPS))
    normed, result, _ = run(Quadratics(GROUPS), arrays=initial_arrays(statistics=True))
    assert clusters_of(normed) == clusters_of(plain)
    carried = normed.tree.leaf_of("partition-1").model.carried
    np.testing.assert_allclose(carried, [3e4, -1e4, 60], rtol=1e-6)
    counter = result.arrays["bn.num_batches_tracked"].numpy()
    assert (counter.dtype, counter) == (np.int64, 5 * (plain.tree.root.split_round - 1))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_models_keep_their_precision(dtype):
    clients = Quadratics(GROUPS)
    strategy, result, _ = run(clients, arrays=initial_arrays(dtype=dtype))
    assert clusters_of(strategy) == clients.planted
    assert {array.dtype for array in result.arrays.values()} == {dtype}
    assert {content["arrays"]["w"].dtype for content in clients.received} == {dtype}


@pytest.mark.slow
def test_a_run_with_the_same_seed_is_identical_also_after_a_resume():
    groups, settings = (0, 1, 2) * 3, {"fraction_train": 0.5, "seed": 7}
    whole, result, reports = run(Quadratics(groups), 24, **settings)
    for stop in (0, 1, 9, 17, 24):
        strategy = strategy_of(**settings, observers=[Kept(reports[:stop])])
        again = strategy.start(Quadratics(groups).grid(), initial_arrays(), num_rounds=24)
        assert picture(strategy) == picture(whole)
        assert again.arrays["w"] == result.arrays["w"]


def test_another_seed_samples_other_clients():
    asked = []
    for seed in (0, 1):
        clients = Quadratics((0,) * 10)
        run(clients, num_rounds=3, fraction_train=0.3, seed=seed)
        asked.append([s.client for s in clients.seen if s.kind == "train"])
    assert len(asked[0]) == len(asked[1]) == 9
    assert asked[0] != asked[1]


class RealGrid(InlineGrid):
    """Counts as a federation of processes, and keeps the nodes that it asked for names."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = []

    def push_messages(self, messages):
        messages = list(messages)
        asked = [m for m in messages if m.metadata.message_type == ROLL_CALL]
        self.asked += [message.metadata.dst_node_id for message in asked]
        return super().push_messages(messages)


class Kept(Observer):
    """Has a checkpoint after the last of these reports."""

    def __init__(self, reports):
        self.reports = reports

    def on_start(self, run):
        last = self.reports[-1] if self.reports else None
        return last and Checkpoint(len(self.reports), last.state, last.failures)


@pytest.fixture
def real_nodes(monkeypatch):
    monkeypatch.setattr("flwr.superlink.grid.HttpGrid", RealGrid)


def test_real_nodes_become_clients_when_they_are_first_sampled(real_nodes):
    clients, settings = Quadratics((0, 1) * 50), {"fraction_train": 0.1, "personal": False}
    grid, reports = RealGrid(clients.app(), 100, {}), Reports()
    strategy_of(observers=[reports], **settings).start(grid, initial_arrays(), 12)
    members = [len(report.trained.clients) for report in reports]
    assert members[0] == 10 + 9  # at the start, and in round 1
    assert members == sorted(members)
    assert members[-1] == len(set(grid.asked)) == len(grid.asked) < 80
    trained = Counter(seen.server_round for seen in clients.seen if seen.kind == "train")
    assert all(10 <= trained[i + 1] <= 20 for i in range(12))
    resumed = strategy_of(**settings, observers=[Kept(reports)])
    grid = RealGrid(clients.app(), 100, {})
    resumed.start(grid, initial_arrays(), 13)
    assert len(grid.asked) == len(resumed.tree.clients) == 100


def test_cflower_s_own_server_asks_as_few_for_the_first_model(real_nodes, tmp_path):
    grids = []

    def grid_type(*args):
        grids.append(RealGrid(*args))
        return grids[0]

    settings = {"fraction_train": 0.1, "min_available_nodes": 2, "num_server_rounds": 1}
    config = RunConfig(model="linear", output_dir=str(tmp_path), **settings).as_keys()
    simulate(client_app, 40, server_app=server_app, run_config=config, grid_type=grid_type)
    assert len(grids[0].asked) == 4 + 4


def test_clients_that_are_sampled_hardly_ever_have_no_personal_step(caplog):
    caplog.set_level(INFO, "flwr")
    run(Quadratics((0,) * 20), 30, fraction_train=0.1, personal=True)
    assert (
        "no personal step: a client trains in 3 rounds on average, too few for one" in caplog.text
    )


def test_the_final_report_compares_with_conventional_federated_learning():
    clients = Quadratics(GROUPS)
    strategy, result, _ = run(clients)
    report = strategy.final_report
    assert set(report.clients) == {clients.name(i) for i in range(6)}
    for i in range(6):
        client = report.clients[clients.name(i)]
        assert client.leaf.metrics["loss"] < 0.05
        federated = np.linalg.norm(vector_of(result.arrays) - CENTERS[GROUPS[i]])
        assert client.federated.metrics["loss"] == pytest.approx(float(federated), rel=1e-5)
        assert client.num_examples == 10 + i
        assert client.facts == {"group": i % 7}
    assert report.metrics["fl_loss"] > 1 > report.metrics["loss"]


def test_evaluate_fn_evaluates_the_model_of_each_cluster():
    calls = []

    def evaluate(server_round, arrays):
        calls.append((server_round, vector_of(arrays)))
        return MetricRecord({"norm": float(np.linalg.norm(vector_of(arrays)))})

    strategy, result, reports = run(Quadratics(GROUPS), start={"evaluate_fn": evaluate})
    numbers = [1, *(len(report.state.tree.leaves) for report in reports)]
    assert [sum(r == i for r, _ in calls) for i in range(13)] == numbers
    assert max(numbers) == 2
    leaves = [leaf.model.trained for leaf in strategy.tree.leaves]
    for (_, vector), model in zip(calls[-2:], leaves, strict=True):
        np.testing.assert_array_equal(vector, model)
    mean = np.mean([np.linalg.norm(model) for model in leaves])
    assert result.evaluate_metrics_serverapp[12]["norm"] == pytest.approx(mean)


def test_aggregation_functions_of_the_caller_are_used_as_in_fedavg():
    def count(contents, weighted_by):
        weights = [next(iter(c.metric_records.values()))[weighted_by] for c in contents]
        return MetricRecord({"clients": len(contents), "examples": sum(weights)})

    functions = {"train_metrics_aggr_fn": count, "evaluate_metrics_aggr_fn": count}
    _, result, _ = run(Quadratics(GROUPS), 2, **functions)
    assert dict(result.train_metrics_clientapp[2]) == {"clients": 6, "examples": 75}
    assert dict(result.evaluate_metrics_clientapp[1]) == {"clients": 6, "examples": 12}


def test_an_app_s_own_loop_may_begin_with_an_evaluation():
    strategy, config = strategy_of(), ConfigRecord()
    grid = Quadratics(GROUPS).grid()
    assert list(strategy.configure_evaluate(0, initial_arrays(), config, grid)) == []
    assert strategy.aggregate_evaluate(0, []) is None
    messages = strategy.configure_train(1, initial_arrays(), config, grid)
    _, metrics = strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert metrics["train_loss"] > 0


def test_takes_the_place_of_fedavg_and_is_it_until_a_split():
    results = []
    for strategy_class in (FedAvg, ClusteredFL):
        strategy = strategy_class(
            fraction_train=1.0, fraction_evaluate=1.0, min_train_nodes=2, min_available_nodes=3
        )
        clients = Quadratics((0, 0, 0), roll_call=False)
        results.append(strategy.start(grid=clients.grid(), initial_arrays=initial_arrays()))
    fedavg, clustered = results
    assert list(clustered.arrays) == list(initial_arrays())
    np.testing.assert_allclose(vector_of(clustered.arrays), vector_of(fedavg.arrays), rtol=1e-5)
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        ours, theirs = getattr(clustered, kind), getattr(fedavg, kind)
        assert list(ours) == list(theirs)
        for server_round, metrics in theirs.items():
            assert dict(ours[server_round]) == pytest.approx(dict(metrics), rel=1e-4)


def test_there_are_no_failures_before_the_start():
    assert ClusteredFL().failures == FailureRecord()
