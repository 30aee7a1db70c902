"""The final evaluation: the models that each client gets, and what its reply is used for."""

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from cflower.algorithm.criteria import NeverSplit
from tests.strategy.quadratics import CENTERS, Quadratics, clusters_of, run

GROUPS = (0, 1, 2, 3) * 2
LOSSES = {"best": 0.25, "ensemble": 0.125}
SENT = {}
"""By client: the models that it got."""


def path_reply(message, context):
    """A reply with the depth of each cluster as the loss of its model."""
    sent = {name: arrays["w"].numpy() for name, arrays in message.content.array_records.items()}
    SENT[f"partition-{context.node_config['partition-id']}"] = sent
    losses = {name: float(name.count(".")) for name in sent} | LOSSES
    records = {n: MetricRecord({"loss": loss, "num-examples": 3}) for n, loss in losses.items()}
    leaf = message.content["config"]["cluster"]
    records["client"] = ConfigRecord({"best-cluster": leaf, "group": 5})
    return Message(RecordDict(records), reply_to=message)


def evaluated(reply=path_reply, able=range(8), **settings):
    """The strategy after a run, with its clients; the ``able`` ones evaluate several models."""
    clients = Quadratics(GROUPS, evaluate_path=reply, evaluates_path=able)
    SENT.clear()
    strategy, result, _ = run(clients, 14, fraction_evaluate=0.0, **settings)
    return clients, strategy, result


def test_each_client_gets_the_models_on_its_path_and_no_other():
    clients, strategy, _ = evaluated()
    tree = strategy.tree
    assert max(len(tree.path_of(name)) for name in tree.clients) > 2
    for name in tree.clients:
        path = tree.path_of(name)
        assert [cluster.name for cluster in path] == list(SENT[name])
        for cluster in path:
            w = SENT[name][cluster.name]
            np.testing.assert_array_equal(w.ravel(), cluster.model.trained[:12])
        result = strategy.final_report.clients[name]
        assert result.leaf.metrics["loss"] == len(path) - 1
        assert result.federated.metrics["loss"] == 0
        assert (result.best_cluster, result.facts["group"]) == (path[-1].name, 5)
    assert [seen for seen in clients.seen if seen.kind == "evaluate"] == []


@pytest.mark.parametrize("selection", ["best", "ensemble", "leaf"])
def test_the_mean_metrics_are_those_of_the_selected_models(selection):
    _, strategy, result = evaluated(selection=selection)
    metrics = strategy.final_report.metrics
    assert metrics["loss"] == metrics[f"{selection}_loss"]
    assert result.evaluate_metrics_clientapp[14]["loss"] == metrics["loss"]
    assert (metrics["best_loss"], metrics["ensemble_loss"]) == tuple(LOSSES.values())


def test_clients_that_cannot_evaluate_several_models_get_plain_messages():
    clients, strategy, _ = evaluated(able=(0, 1), selection="best")
    plain = {seen.client for seen in clients.seen if seen.kind == "evaluate"}
    assert plain == set(range(2, 8))
    for name, result in strategy.final_report.clients.items():
        is_able = name in ("partition-0", "partition-1")
        assert (result.best is not None) == (result.ensemble is not None) == is_able
        assert result.served("best") == (result.best if is_able else result.leaf)
        assert next(iter(result.levels)) == "0"
    assert set(strategy.final_report.clients) == set(strategy.tree.clients)


def test_without_a_split_every_column_is_of_the_same_model():
    clients, strategy, _ = evaluated(criterion=NeverSplit())
    assert SENT == {}
    assert sum(seen.kind == "evaluate" for seen in clients.seen) == len(GROUPS)
    for result in strategy.final_report.clients.values():
        assert result.leaf == result.federated == result.best == result.ensemble
        assert result.best_cluster == "0"


def test_isolated_clients_share_nothing():
    _, strategy, _ = evaluated(criterion=NeverSplit(), isolated=True)
    assert clusters_of(strategy) == {frozenset({f"partition-{i}"}) for i in range(8)}
    for i, group in enumerate(GROUPS):
        leaf = strategy.tree.leaf_of(f"partition-{i}")
        np.testing.assert_allclose(leaf.model.trained, CENTERS[group], atol=0.02)
        assert list(strategy.final_report.clients[f"partition-{i}"].levels) == [leaf.name]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda content: content.pop("best"), "has no MetricRecord best"),
        (lambda content: content.pop("0"), "has no MetricRecord 0"),
        (
            lambda content: content["client"].update({"best-cluster": "0.7"}),
            "has best-cluster='0.7', not on its path",
        ),
        (lambda content: 1 / 0, "is an error: ZeroDivisionError: division by zero"),
    ],
)
def test_a_reply_that_cannot_be_used_is_set_aside_with_its_reason(change, problem):
    def spoiled(message, context):
        reply = path_reply(message, context)
        if context.node_config["partition-id"] == 0:
            change(reply.content)
        return reply

    _, strategy, _ = evaluated(spoiled)
    report = strategy.final_report
    assert report.problems == {"partition-0": problem}
    assert set(report.clients) == set(strategy.tree.clients) - {"partition-0"}


def test_the_result_as_tables_keeps_the_names_of_clusters_as_text(tmp_path):
    clients = Quadratics((0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3))
    central = {"evaluate_fn": lambda server_round, arrays: MetricRecord({"norm": 1.0})}
    strategy, result, _ = run(clients, 30, start=central)
    table = result.clients_table()
    assert dict(table["cluster"]) == {c: strategy.cluster_of(c) for c in strategy.tree.clients}
    assert len(set(table["cluster"])) > 2
    for name, one in strategy.final_report.clients.items():
        assert table.loc[name, "loss"] == one.served("leaf").metrics["loss"]
        assert table.loc[name, "leaf_loss"] == one.leaf.metrics["loss"]
        assert table.loc[name, "fl_loss"] == one.federated.metrics["loss"]
        assert table.loc[name, "num_examples"] == one.num_examples
    table.to_csv(tmp_path / "clients.csv")
    types = {"client": str, "cluster": str}
    again = pd.read_csv(tmp_path / "clients.csv", dtype=types).set_index("client")
    assert dict(again["cluster"]) == dict(table["cluster"])
    rounds = result.rounds_table()
    assert list(rounds.index) == list(range(31))
    assert set(rounds.columns) == {"train.train_loss", "evaluate.loss", "central.norm"}
