"""`ClusteredFL` on whole runs in one process, with ClientApps in NumPy."""

import time
from logging import INFO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from cflower import ClusteredFL
from cflower.algorithm.criteria import NeverSplit, Outcome
from cflower.errors import ConfigError, FederationError
from cflower.messages.roll_call import RollCall
from cflower.simulation.inline_grid import FIRST_NODE_ID
from tests.strategy.quadratics import (
    CENTERS,
    CRITERION,
    Quadratics,
    Reports,
    found,
    initial_arrays,
    strategy_of,
    vector_of,
    without,
)

GROUPS = (0, 1, 0, 1, 0, 1)


def run(clients, num_rounds=12, arrays=None, start=None, **settings):
    """A strategy after a run, with its result and reports."""
    reports = Reports()
    strategy = strategy_of(observers=[reports], **settings)
    result = strategy.start(
        clients.grid(), arrays or initial_arrays(), num_rounds=num_rounds, **(start or {})
    )
    return strategy, result, reports


# ------------------------------------------------------------------ who gets which model


@pytest.mark.parametrize("groups", [GROUPS, (0, 1, 2, 0, 1, 2, 1), (3, 2, 1, 0) * 2])
def test_the_planted_groups_are_found_and_served(groups):
    clients = Quadratics(groups)
    strategy, _, _ = run(clients, num_rounds=30)
    assert found(strategy) == clients.planted
    for client, group in enumerate(groups):
        model = strategy.tree.leaf_of(clients.name(client)).model.trained
        np.testing.assert_allclose(model, CENTERS[group], atol=0.02)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_every_client_always_gets_the_model_of_its_own_cluster(fraction):
    clients = Quadratics((0, 1, 2, 3) * 2)
    _, _, reports = run(clients, num_rounds=30, fraction_train=fraction, seed=3)
    before = [None, None, *(report.state.tree for report in reports)]  # by round
    looked_at = 0
    for seen in clients.seen:
        name = clients.name(seen.client)
        after = reports[seen.server_round - 1].state.tree
        if seen.kind == "evaluate":
            expected = [after.leaf_of(name)]
            if seen.server_round == 30:
                expected.append(after.root)
        elif seen.server_round > 1:
            expected = [before[seen.server_round].training_cluster(name)]
        else:
            np.testing.assert_array_equal(seen.vector, np.zeros(16))
            continue
        models = {cluster.name: cluster.model.trained for cluster in expected}
        np.testing.assert_array_equal(seen.vector, models[seen.cluster])
        looked_at += 1
    assert looked_at > 250
    assert len(reports[-1].state.tree.leaves) >= 3


def test_half_of_the_clients_a_round_find_the_groups_too(caplog):
    caplog.set_level(INFO, "flwr")
    clients = Quadratics((0, 1) * 5)
    strategy, _, reports = run(clients, num_rounds=40, fraction_train=0.5, seed=3)
    trained = [len(report.trained_on) for report in reports]
    assert max(trained) < 10
    assert found(strategy) == clients.planted
    walked = {client for report in reports for client in report.state.tree.unassigned}
    told = {r.args[0] for r in caplog.records if r.msg.startswith("Client %s walks down")}
    assert told == walked != set()


def test_the_log_begins_with_the_settings(caplog):
    caplog.set_level(INFO, "flwr")
    run(Quadratics(GROUPS), num_rounds=1, weighting="uniform", fraction_evaluate=0.5)
    told = [text.strip("\t├└─> ") for text in caplog.messages]
    begin = told.index(f"Clusters split by: {CRITERION}")
    assert told[begin + 1].startswith("Within a cluster: ServerOptimizer(rule='fedavg'")
    assert told[begin + 1].endswith("weighted by uniform")
    assert told[begin + 2] == "Sampled per cluster: train (1.00) | evaluate (0.50)"


def test_who_asks_for_an_unknown_client_is_told_some_that_there_are():
    strategy, _, _ = run(Quadratics(GROUPS), num_rounds=1)
    with pytest.raises(FederationError, match=r"it has partition-0, .*, partition-4\)"):
        strategy.cluster_of("partition-9")


def test_an_app_that_knows_nothing_of_the_roll_call_goes_by_its_node_id():
    clients = Quadratics(GROUPS, roll_call=False)
    strategy, _, _ = run(clients)
    assert strategy.tree.clients == tuple(str(FIRST_NODE_ID + i) for i in range(6))
    assert found(strategy) == clients.planted


def test_numbers_of_examples_weigh_as_eq_2_says():
    for weighting, weights in (("examples", [10, 11, 12]), ("uniform", [1, 1, 1])):
        clients = Quadratics((0, 1, 2))
        strategy, _, _ = run(clients, num_rounds=1, criterion=NeverSplit(), weighting=weighting)
        mean = np.average(CENTERS[:3] / 2, axis=0, weights=weights)
        np.testing.assert_allclose(strategy.tree.root.model.trained, mean, atol=4e-3)


def test_isolated_clients_share_nothing():
    clients = Quadratics(GROUPS)
    strategy, _, _ = run(clients, num_rounds=10, isolated=True, criterion=NeverSplit())
    assert found(strategy) == {frozenset({clients.name(i)}) for i in range(6)}
    np.testing.assert_allclose(
        strategy.tree.leaf_of("partition-1").model.trained, CENTERS[1], atol=0.02
    )


# ---------------------------------------------------------------- clients that misbehave


def raises(message, content, server_round):
    raise ValueError("boom")


def with_array(key, value):
    def spoil(message, content, server_round):
        content["arrays"][key] = Array(np.asarray(value))
        return Message(content, reply_to=message)

    return spoil


def with_metrics(**values):
    def spoil(message, content, server_round):
        content["metrics"] = MetricRecord({k.replace("_", "-"): v for k, v in values.items()})
        return Message(content, reply_to=message)

    return spoil


def lacking(key):
    def spoil(message, content, server_round):
        del content[key]
        return Message(content, reply_to=message)

    return spoil


WRONG = {
    "raises": (raises, "is an error: <class 'ValueError'>:<'boom'>"),
    "nan": (with_array("b", np.full(4, np.nan, np.float32)), "has NaN or infinity in b"),
    "infinity": (with_array("b", np.full(4, np.inf, np.float32)), "has NaN or infinity in b"),
    "shape": (with_array("b", np.zeros(1, np.float32)), "has b of shape (1,), not (4,)"),
    "dtype": (with_array("b", np.zeros(4, np.int64)), "has b of dtype int64, not float32"),
    "extra": (with_array("c", np.zeros(1)), "has the unknown array(s) c"),
    "too large": (with_array("b", np.full(4, 1e300)), "has NaN or infinity in b"),
    "no metrics": (lacking("metrics"), "has 0 MetricRecords instead of one"),
    "no arrays": (lacking("arrays"), "has 0 ArrayRecords instead of one"),
    "no weight": (with_metrics(loss=1.0), "says no 'num-examples'"),
    "no examples": (
        with_metrics(num_examples=0),
        "says num-examples=0, not a finite number above 0",
    ),
    "no reply": (lambda *_: None, "is an error"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_client_that_misbehaves_is_set_aside_and_the_others_are_served(kind):
    spoil, problem = WRONG[kind]
    clients = Quadratics(GROUPS, spoil={2: spoil})
    strategy, result, reports = run(clients, exclude_after=0)
    for report in reports:
        assert report.problems["partition-2"].startswith(problem)
        assert set(report.trained_on) == {clients.name(i) for i in (0, 1, 3, 4, 5)}
    assert without(found(strategy), "partition-2") == without(clients.planted, "partition-2")
    assert "partition-2" in strategy.tree.clients
    for i in (0, 1, 3, 4, 5):
        model = strategy.tree.leaf_of(clients.name(i)).model.trained
        np.testing.assert_allclose(model, CENTERS[GROUPS[i]], atol=0.05)
    assert np.isfinite(vector_of(result.arrays)).all()


def test_a_client_that_comes_to_its_senses_finds_its_group():
    def until_round_12(message, content, server_round):
        if server_round < 12:
            raise ValueError("not yet")
        return Message(content, reply_to=message)

    clients = Quadratics(GROUPS, spoil={2: until_round_12})
    strategy, _, reports = run(clients, num_rounds=14, exclude_after=0)
    assert reports[10].state.tree.unassigned == {"partition-2": "0"}
    assert found(strategy) == clients.planted


def test_a_client_that_fails_only_in_evaluation_is_trained_all_the_same():
    clients = Quadratics(GROUPS, spoil_evaluate={1: raises})
    strategy, result, _ = run(clients)
    assert found(strategy) == clients.planted
    assert set(strategy.final_report.clients) == {clients.name(i) for i in (0, 2, 3, 4, 5)}
    assert "boom" in strategy.final_report.problems["partition-1"]
    assert set(result.evaluate_metrics_clientapp) == set(range(1, 13))


def test_when_all_fail_in_the_first_round_the_run_stops_with_the_reason():
    clients = Quadratics(GROUPS, spoil=dict.fromkeys(range(6), raises))
    with pytest.raises(FederationError, match=r"round 1\. partition-0: .*boom"):
        run(clients)


def test_a_round_in_which_all_fail_is_survived_but_not_three():
    def fails_in(rounds):
        def spoil(message, content, server_round):
            if server_round in rounds:
                raise ValueError("lost")
            return Message(content, reply_to=message)

        return dict.fromkeys(range(6), spoil)

    clients = Quadratics(GROUPS, spoil=fails_in({3, 4}))
    strategy, result, reports = run(clients, num_rounds=14)
    assert found(strategy) == clients.planted
    assert set(result.train_metrics_clientapp) == set(range(1, 15)) - {3, 4}
    assert len({id(report.state.tree.root.model) for report in reports[1:4]}) == 1
    with pytest.raises(FederationError, match=r"round 5.*lost"):
        run(Quadratics(GROUPS, spoil=fails_in({3, 4, 5})), num_rounds=14)


def test_clients_need_no_metric_besides_the_number_of_examples():
    clients = Quadratics(GROUPS, metrics=lambda client: {})
    strategy, result, _ = run(clients)
    assert found(strategy) == clients.planted
    assert set(result.train_metrics_clientapp) == set(range(1, 13))


def test_too_few_nodes_are_told_before_any_training():
    clients = Quadratics((0, 1))
    with pytest.raises(FederationError, match=r"needs 5 SuperNodes .* has 2"):
        run(clients, min_available_nodes=5, roll_call=RollCall(timeout=0.1))
    assert clients.seen == []


def test_a_model_that_is_not_finite_is_refused_before_any_training():
    arrays = initial_arrays()
    arrays["b"] = Array(np.full(4, np.nan, np.float32))
    clients = Quadratics(GROUPS)
    with pytest.raises(ConfigError, match=r"initial model has NaN"):
        run(clients, arrays=arrays)
    assert clients.seen == []


# ------------------------------------------------------------------------ what is shared


def test_no_record_is_shared_between_messages():
    clients = Quadratics(GROUPS)
    run(clients, num_rounds=4)
    records = [r for content in clients.received for r in (content, *content.values())]
    assert len({id(record) for record in records}) == len(records)


def test_what_one_client_does_to_its_message_no_other_sees():
    def vandal(message, content, server_round):
        message.content["config"]["server-round"] = 999
        message.content["arrays"]["b"] = Array(np.full(4, 99, np.float32))
        del message.content["arrays"]["w"]
        return Message(content, reply_to=message)

    clients = Quadratics(GROUPS, spoil={0: vandal})
    strategy, _, _ = run(clients)
    assert found(strategy) == clients.planted
    assert {seen.server_round for seen in clients.seen} == set(range(1, 13))


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


# ------------------------------------------------------------------ statistics and dtypes


def test_statistics_are_averaged_but_decide_nothing():
    plain, _, plain_reports = run(Quadratics(GROUPS))
    normed, result, reports = run(Quadratics(GROUPS), arrays=initial_arrays(statistics=True))
    assert found(normed) == found(plain)
    for one, other in zip(reports, plain_reports, strict=True):
        assert one.decisions == other.decisions
    leaf = normed.tree.leaf_of("partition-1")
    np.testing.assert_allclose(
        leaf.model.carried, [1e4 * np.average([1, 3, 5], weights=[11, 13, 15]), -1e4, 60], rtol=1e-6
    )
    counter = result.arrays["bn.num_batches_tracked"].numpy()
    assert counter.dtype == np.int64
    split_round = next(r.server_round for r in reports if r.decisions[0].sides)
    assert counter == 5 * (split_round - 1)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_models_keep_their_precision(dtype):
    clients = Quadratics(GROUPS)
    strategy, result, _ = run(clients, arrays=initial_arrays(dtype=dtype))
    assert found(strategy) == clients.planted
    assert {array.dtype for array in result.arrays.values()} == {dtype}
    assert {content["arrays"]["w"].dtype for content in clients.received} == {dtype}


# ----------------------------------------------------------------------------- sameness


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_the_same_seed_gives_the_same_tree_bit_by_bit(fraction):
    trees = [run(Quadratics(GROUPS), 14, fraction_train=fraction, seed=7)[0].tree for _ in range(2)]
    assert list(trees[0].clusters) == list(trees[1].clusters)
    assert trees[0].unassigned == trees[1].unassigned
    for name, one in trees[0].clusters.items():
        other = trees[1].clusters[name]
        assert one.members == other.members
        assert one.model.trained.tobytes() == other.model.trained.tobytes()
        assert {c: u.tobytes() for c, u in one.edge.items()} == {
            c: u.tobytes() for c, u in other.edge.items()
        }


def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been():
    groups, settings = (0, 1, 2) * 3, {"fraction_train": 0.5, "seed": 7}
    whole, _, reports = run(Quadratics(groups), 24, **settings)
    for stop in (1, 9, 17):
        strategy = strategy_of(**settings)
        strategy.resume(reports[stop - 1].state, stop)
        strategy.start(Quadratics(groups).grid(), initial_arrays(), num_rounds=24)
        assert list(strategy.tree.clusters) == list(whole.tree.clusters)
        for name, cluster in whole.tree.clusters.items():
            again = strategy.tree.clusters[name]
            assert again.members == cluster.members
            assert again.model.trained.tobytes() == cluster.model.trained.tobytes()


def test_another_seed_asks_other_clients():
    asked = []
    for seed in (0, 1):
        clients = Quadratics((0,) * 10)
        run(clients, num_rounds=3, fraction_train=0.3, seed=seed)
        asked.append([s.client for s in clients.seen if s.kind == "train"])
    assert len(asked[0]) == len(asked[1]) == 9
    assert asked[0] != asked[1]


# ------------------------------------------------------------------------------ results


def test_metrics_are_weighted_over_all_clusters():
    clients = Quadratics(GROUPS)
    _, result, reports = run(clients)
    weights = [10 + i for i in range(6)]
    for server_round in range(1, 13):
        loss = result.train_metrics_clientapp[server_round]["train_loss"]
        assert loss == pytest.approx(np.average(range(6), weights=weights))
    assert result.evaluate_metrics_clientapp[12]["loss"] < 0.05
    assert reports[-2].measured["partition-3"].metrics.keys() == {"train_loss", "loss"}


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


def test_without_a_split_both_are_the_same_and_asked_for_once():
    clients = Quadratics((0, 0, 0))
    strategy, _, _ = run(clients, num_rounds=3)
    last = [s for s in clients.seen if (s.kind, s.server_round) == ("evaluate", 3)]
    assert len(last) == 3
    assert all(c.leaf == c.federated for c in strategy.final_report.clients.values())


def test_without_evaluation_only_the_last_round_is_evaluated():
    clients = Quadratics(GROUPS)
    _, result, _ = run(clients, fraction_evaluate=0.0)
    assert {s.server_round for s in clients.seen if s.kind == "evaluate"} == {12}
    assert set(result.evaluate_metrics_clientapp) == {12}


def test_every_cluster_is_decided_on_every_round():
    _, _, reports = run(Quadratics(GROUPS))
    leaves = ["0"]
    for report in reports:
        assert [decision.cluster for decision in report.decisions] == leaves
        assert all(decision.reason for decision in report.decisions)
        leaves = [leaf.name for leaf in report.state.tree.leaves]
    assert [d.outcome for d in reports[0].decisions] == [Outcome.MOVING]
    assert {d.outcome for d in reports[-1].decisions} == {Outcome.CONTENT}


def test_evaluate_fn_sees_every_clusters_model():
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
    assert result.evaluate_metrics_serverapp[12]["norm"] == pytest.approx(
        np.mean([np.linalg.norm(model) for model in leaves])
    )


def test_evaluate_fn_may_return_nothing():
    _, result, _ = run(Quadratics(GROUPS), 2, start={"evaluate_fn": lambda *_: None})
    assert result.evaluate_metrics_serverapp == {}


def test_aggregation_functions_of_the_caller_are_used_as_in_fedavg():
    def count(contents, weighted_by):
        weights = [next(iter(c.metric_records.values()))[weighted_by] for c in contents]
        return MetricRecord({"clients": len(contents), "examples": sum(weights)})

    _, result, _ = run(
        Quadratics(GROUPS), 2, train_metrics_aggr_fn=count, evaluate_metrics_aggr_fn=count
    )
    assert dict(result.train_metrics_clientapp[2]) == {"clients": 6, "examples": 75}
    assert dict(result.evaluate_metrics_clientapp[1]) == {"clients": 6, "examples": 12}


# ------------------------------------------------------------------- in place of FedAvg


def server_app(strategy_class, results):
    """A ServerApp as Flower's tutorials write it."""
    app = ServerApp()

    @app.main()
    def main(grid, context):
        strategy = strategy_class(
            fraction_train=1.0, fraction_evaluate=1.0, min_train_nodes=2, min_available_nodes=3
        )
        results.append(
            strategy.start(
                grid=grid,
                initial_arrays=initial_arrays(),
                train_config=ConfigRecord({"lr": 0.01}),
                num_rounds=context.run_config["num-server-rounds"],
            )
        )

    return app


def test_takes_the_place_of_fedavg_and_is_it_until_a_split():
    results = []
    for strategy_class in (FedAvg, ClusteredFL):
        clients = Quadratics((0, 0, 0), roll_call=False)
        context = Context(1, 1, {}, RecordDict(), {"num-server-rounds": 3})
        server_app(strategy_class, results)(clients.grid(), context)
    fedavg, clustered = results
    assert list(clustered.arrays) == list(initial_arrays())
    np.testing.assert_allclose(vector_of(clustered.arrays), vector_of(fedavg.arrays), rtol=1e-5)
    for kind in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        ours, theirs = getattr(clustered, kind), getattr(fedavg, kind)
        assert list(ours) == list(theirs)
        for server_round, metrics in theirs.items():
            assert dict(ours[server_round]) == pytest.approx(dict(metrics), rel=1e-4)


def test_an_app_without_evaluation_is_trained_all_the_same():
    clients = Quadratics(GROUPS)
    app = ClientApp()
    app.train()(clients._train)
    clients.app = lambda: app
    clients.roll_call = False
    strategy, result, _ = run(clients)
    assert found(strategy) == clients.planted
    assert result.evaluate_metrics_clientapp == {}
    assert isinstance(result.arrays, ArrayRecord)


def test_a_run_in_one_process_is_quick():
    began = time.monotonic()
    run(Quadratics(GROUPS), num_rounds=10, fraction_evaluate=0.0)
    assert time.monotonic() - began < 5
