"""Clients that train nothing, because they fail or only evaluate: they are in no cluster."""

import json

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from cflower import Recorder, name_clients
from cflower.errors import ConfigError, FederationError
from cflower.exporting.export import export
from cflower.messages.client_names import ROLL_CALL, answer, only_evaluates
from cflower.messages.flower import functions_of
from cflower.runs.record import RunRecord
from cflower.runs.tables import as_text, run_view
from tests.strategy.quadratics import CRITERION, Quadratics, fails_in, run, vector_of

GROUPS = (0, 0, 0, 1, 1, 1, 1)
LAST = "partition-6"


class Watching(Quadratics):
    """The last client only evaluates."""

    def _answer(self, message, context):
        reply = super()._answer(message, context)
        only = int(context.node_config["partition-id"]) == len(self.groups) - 1
        reply.content["client"]["evaluate-only"] = only
        return reply


def failing(groups):
    return Quadratics(groups, spoil={len(groups) - 1: fails_in(*range(99))})


@pytest.mark.parametrize("clients_of", [Watching, failing])
@pytest.mark.parametrize("criterion", [None, CRITERION])
def test_a_client_that_trains_nothing_is_in_no_cluster_and_is_served_by_the_common_model(
    tmp_path, clients_of, criterion
):
    clients = clients_of(GROUPS)
    recorder = Recorder(tmp_path)
    strategy, result, _ = run(
        clients, observers=[recorder], criterion=criterion, metric="loss", num_rounds=14
    )
    assert {frozenset(members) for members in result.clusters.values()} == {
        frozenset(f"partition-{i}" for i in side) for side in ((0, 1, 2), (3, 4, 5))
    }
    np.testing.assert_array_equal(
        vector_of(strategy.model_of(LAST)), vector_of(strategy.models["0"])
    )
    summary = json.loads((recorder.path / "summary.json").read_text())
    assert summary["not_placed"] == [LAST]
    assert [*summary["clusters"].values()] == [[*members] for members in result.clusters.values()]
    line = summary["clients"][LAST]
    assert line["cluster"] == ""
    if clients_of is Watching:  # the other one is excluded, so nobody evaluates it
        assert line["served_by"]["cluster"] == "0"
        assert line["leaf_loss"] == line["fl_loss"] == line["loss"]
    record = RunRecord.read(recorder.path)
    shown = " ".join(as_text(run_view(record.summary, record.clusters), 200).split())
    assert f"because no usable update came: 1 client ({LAST})" in shown
    assert "cluster 0: 6 clients" in shown
    assert LAST in (recorder.path / "report.html").read_text()
    with pytest.raises(ConfigError, match="sent no usable update and has no cluster"):
        export(recorder.path, client=LAST)


def test_a_client_that_only_evaluates_is_never_asked_to_train_nor_about_a_split():
    clients = Watching(GROUPS)
    run(clients, criterion=None, metric="loss", num_rounds=14, fraction_evaluate=1.0)
    asked = [seen for seen in clients.seen if seen.client == len(GROUPS) - 1]
    assert {seen.kind for seen in asked} == {"evaluate"}
    assert {seen.cluster for seen in asked} == {"0"}
    assert len(asked) == 14  # after each round but the last, and at the end
    others = [seen for seen in clients.seen if seen.client == 0 and seen.kind == "evaluate"]
    assert len(others) > len(asked)  # they vote


def test_clients_of_which_all_only_evaluate_cannot_train_a_model():
    class All(Quadratics):
        def _answer(self, message, context):
            return answer(message, client_id=str(context.node_id), evaluate_only=True)

    with pytest.raises(FederationError, match="All 3 clients of this run only evaluate"):
        run(All((0, 0, 0)))


@pytest.mark.parametrize(
    ("node", "named", "expected"),
    [
        ({"client-id": "ward 3"}, "", False),
        ({"client-id": "ward 3", "evaluate-only": True}, "", True),
        ({"client-id": "ward 3"}, "ward 2, ward 3", True),
        ({"client-id": "ward 3"}, "ward 31", False),
        ({"partition-id": 2, "num-partitions": 3}, "partition-2", True),
    ],
)
def test_a_client_only_evaluates_by_its_node_config_or_by_its_name_in_the_run_config(
    node, named, expected
):
    context = Context(1, 7, node, RecordDict(), {"evaluate-only": named})
    app = functions_of(name_clients(ClientApp()))[ROLL_CALL]
    facts = app(Message(RecordDict(), 7, ROLL_CALL), context).content["client"]
    assert facts["evaluate-only"] is expected
    assert only_evaluates(context, str(facts["client-id"])) is expected
