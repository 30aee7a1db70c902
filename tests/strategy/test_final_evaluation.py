"""The final evaluation: who gets which models, and what becomes of the answers."""

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from cflower.algorithm.criteria import NeverSplit
from cflower.algorithm.tree import Cluster, ParameterTree, Weights
from cflower.strategy.final_evaluation import ENTROPIES, MOST_OTHERS, OTHER, other_leaves
from tests.strategy.quadratics import Quadratics, initial_arrays, strategy_of

GROUPS = (0, 1, 2, 3) * 2
LOSSES = {"best": 0.25, "ensemble": 0.125}


def answer_way(message, context):
    """The cluster's depth as the loss of its model, and what it was sent."""
    sent = {name: arrays["w"].numpy() for name, arrays in message.content.array_records.items()}
    losses = {name: float(name.count(".")) for name in sent} | LOSSES
    records = {
        name: MetricRecord({"loss": loss, "num-examples": 3}) for name, loss in losses.items()
    }
    leaf = message.content["config"]["cluster"]
    records["client"] = ConfigRecord({"best-cluster": leaf, "group": 5})
    SENT[f"partition-{context.node_config['partition-id']}"] = sent
    return Message(RecordDict(records), reply_to=message)


SENT = {}


def closed(way=answer_way, know=range(8), tells_entropies=False, **settings):
    """A strategy after a run whose clients ``know`` the message with all models."""
    clients = Quadratics(GROUPS, ways=way, knows_ways=know, tells_entropies=tells_entropies)
    SENT.clear()
    strategy = strategy_of(fraction_evaluate=0.0, **settings)
    result = strategy.start(clients.grid(), initial_arrays(), num_rounds=30)
    return clients, strategy, result


def test_each_client_gets_the_models_of_its_way_and_no_other():
    clients, strategy, _ = closed()
    tree = strategy.tree
    assert max(len(tree.path_of(name)) for name in tree.clients) > 2
    for name in tree.clients:
        way = tree.path_of(name)
        assert [cluster.name for cluster in way] == list(SENT[name])
        for cluster in way:
            np.testing.assert_array_equal(
                SENT[name][cluster.name].ravel(), cluster.model.trained[:12]
            )
        result = strategy.final_report.clients[name]
        assert result.leaf.metrics["loss"] == len(way) - 1
        assert result.federated.metrics["loss"] == 0
        assert (result.best_cluster, result.facts["group"]) == (way[-1].name, 5)
    assert [seen for seen in clients.seen if seen.kind == "evaluate"] == []


@pytest.mark.parametrize(("selection", "loss"), [*LOSSES.items(), ("leaf", None)])
def test_the_run_is_judged_by_its_selection(selection, loss):
    _, strategy, result = closed(selection=selection)
    metrics = strategy.final_report.metrics
    assert metrics["loss"] == metrics[f"{selection}_loss"]
    assert result.evaluate_metrics_clientapp[30]["loss"] == metrics["loss"]
    assert (metrics["best_loss"], metrics["ensemble_loss"]) == tuple(LOSSES.values())
    assert loss in (None, metrics["loss"])


def test_clients_that_do_not_know_the_message_get_plain_ones(caplog):
    clients, strategy, _ = closed(know=(0, 1), selection="best")
    plain = {seen.client for seen in clients.seen if seen.kind == "evaluate"}
    assert plain == set(range(2, 8))
    for name, result in strategy.final_report.clients.items():
        asked_at_once = name in ("partition-0", "partition-1")
        assert (result.best is not None) == (result.ensemble is not None) == asked_at_once
        assert result.served("best") == (result.best if asked_at_once else result.leaf)
        assert next(iter(result.levels)) == "0"
    assert set(strategy.final_report.clients) == set(strategy.tree.clients)


def test_without_a_split_there_is_one_model_in_every_column():
    _, strategy, _ = closed(criterion=NeverSplit())
    assert SENT == {}
    for result in strategy.final_report.clients.values():
        assert result.leaf == result.federated == result.best == result.ensemble
        assert result.best_cluster == "0"


def test_isolated_clients_have_no_model_for_all():
    _, strategy, _ = closed(criterion=NeverSplit(), isolated=True)
    for name, result in strategy.final_report.clients.items():
        assert list(result.levels) == [strategy.tree.leaf_of(name).name]


def lacking(key):
    def way(message, context):
        reply = answer_way(message, context)
        del reply.content[key]
        return reply

    return way


def lost(message, context):
    reply = answer_way(message, context)
    reply.content["client"]["best-cluster"] = "0.7"
    return reply


def raises(message, context):
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("way", "problem"),
    [
        (lacking("best"), "has no MetricRecord best"),
        (lacking("0"), "has no MetricRecord 0"),
        (lost, "says best-cluster='0.7', not on its way"),
        (raises, "is an error: <class 'ValueError'>:<'boom'>"),
    ],
)
def test_an_answer_that_cannot_be_used_is_set_aside_with_its_reason(way, problem):
    only_0 = lambda m, c: (way if c.node_config["partition-id"] == 0 else answer_way)(m, c)  # noqa: E731
    _, strategy, _ = closed(only_0)
    report = strategy.final_report
    assert report.problems == {"partition-0": problem}
    assert set(report.clients) == set(strategy.tree.clients) - {"partition-0"}


def tells(entropies):
    """`answer_way` of an app that tells entropies, for the models that it was sent."""

    def way(message, context):
        reply = answer_way(message, context)
        for name in [name for name in reply.content if name.startswith(OTHER)]:
            del reply.content[name]
        told = entropies({name.removeprefix(OTHER) for name in message.content.array_records})
        reply.content[ENTROPIES] = MetricRecord(told)
        return reply

    return way


def test_who_tells_entropies_gets_other_leaves_models_too():
    _, strategy, _ = closed(tells(lambda sent: dict.fromkeys(sent, 0.5)), tells_entropies=True)
    tree = strategy.tree
    leaves = {leaf.name for leaf in tree.leaves}
    assert len(leaves) == 4 == MOST_OTHERS + 1
    for name in tree.clients:
        own = tree.leaf_of(name).name
        sent = [key for key in SENT[name] if key.startswith(OTHER)]
        assert sorted(sent) == sorted(f"{OTHER}{leaf}" for leaf in leaves - {own})
        for key in sent:
            model = tree.clusters[key.removeprefix(OTHER)].model
            np.testing.assert_array_equal(SENT[name][key].ravel(), model.trained[:12])
        result = strategy.final_report.clients[name]
        assert dict(result.entropies) == dict.fromkeys(leaves, 0.5)
        assert list(result.levels) == [cluster.name for cluster in tree.path_of(name)]


@pytest.mark.parametrize(
    "wrong", [{"0.7": 0.5}, {"0": 0.5}, {"0.0": -0.1}, {"0.0": float("nan")}, {"0.0": [0.5]}]
)
def test_entropies_that_cannot_be_are_left_out(wrong):
    _, strategy, _ = closed(tells(lambda sent: wrong), tells_entropies=True)
    assert [dict(r.entropies) for r in strategy.final_report.clients.values()] == [{}] * 8


@pytest.mark.parametrize(("leaves", "size"), [(2, 1), (4, 3), (8, 3), (14, 10)])
def test_the_members_of_a_leaf_share_the_others_among_them(leaves, size):
    weights = Weights(np.zeros(1, np.float32), np.zeros(0, np.float32))
    tree = ParameterTree.initial(weights, [f"{i}" for i in range(leaves * size)])
    names = [f"0.{i}" for i in range(leaves)]
    below = [
        Cluster(name, tuple(f"{i * size + j}" for j in range(size)), weights, 1)
        for i, name in enumerate(names)
    ]
    tree = tree.update(replace(tree.root, children=tuple(names), split_round=1), *below)
    others_of = other_leaves(tree)
    for leaf in below:
        sent = [others_of[client] for client in leaf.members]
        assert all(len(others) == min(MOST_OTHERS, leaves - 1) for others in sent)
        different = {key for others in sent for key in others}
        assert f"{OTHER}{leaf.name}" not in different
        assert len(different) == min(leaves - 1, MOST_OTHERS * size)
