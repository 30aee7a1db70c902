"""No client ends the run of the others, or leaves a folder that cannot be read."""

import json
from dataclasses import dataclass, field

import pytest
from flwr.app import ConfigRecord, MetricRecord
from flwr.supercore.task_identity import TaskIdentity

from cflower import ClusteredFL, Recorder
from cflower.algorithm.criteria import NeverSplit
from cflower.messages.client_names import FACTS
from cflower.runs.record import RunRecord
from cflower.runs.report import write_report
from cflower.runs.run_files import read_json
from cflower.runs.tables import as_text, run_view
from tests.strategy.quadratics import CRITERION, Quadratics, found, initial_arrays

GROUPS = (0, 0, 0, 1, 1, 1)
HOSTILE = "partition-5"


@pytest.fixture(autouse=True)
def _identity():
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


@dataclass
class Hostile(Quadratics):
    """The last client's answers are changed by ``tells``: by the kind of message, in place."""

    tells: dict = field(default_factory=dict)

    def app(self):
        app = super().app()

        def client(message, context):
            reply = app(message, context)
            kind = message.metadata.message_type
            last = context.node_config["partition-id"] == len(self.groups) - 1
            if last and kind in self.tells and not reply.has_error():
                self.tells[kind](reply.content)
            return reply

        client._registered_funcs = app._registered_funcs
        return client


def run(tmp_path, rounds=8, criterion=CRITERION, **tells):
    """The folder of a run in which the last client tells something else."""
    clients = Hostile(GROUPS, metrics=lambda client: {"accuracy": 0.5 + 0.01 * client})
    kinds = {"facts": "query.roll_call", "trained": "train.default", "closing": "evaluate.default"}
    # Flower leaves the default action out of a message's type.
    clients.tells = {kinds[name].removesuffix(".default"): c for name, c in tells.items()}
    recorder = Recorder(tmp_path)
    strategy = ClusteredFL(criterion, metric="loss", observers=[recorder], min_available_nodes=2)
    strategy.start(clients.grid(), initial_arrays(), num_rounds=rounds)
    return strategy, recorder.path


def is_readable(folder):
    """What `cflower show` and `cflower report` do with it; the summary."""
    summary = read_json(folder, "summary.json")
    assert summary["finished"]
    assert as_text(run_view(summary, read_json(folder, "tree.json")))
    RunRecord.read(folder)
    assert write_report(folder).is_file()
    return summary


def told(**facts):
    def change(content):
        record = content.config_records.get(FACTS) or ConfigRecord()
        content[FACTS] = ConfigRecord({**record, **facts})

    return change


def measured(**metrics):
    def change(content):
        content["metrics"] = MetricRecord({**content["metrics"], **metrics})

    return change


@pytest.mark.parametrize(
    "facts",
    [
        {"class-names": 5},
        {"input-shape": 5},
        {"num-partitions": "many"},
        {"num-partitions": [1, 2]},
        {"label-counts": 5},
        {"sample-images": b"junk"},
        {"client-id": "__metadata__"},
        {"client-id": "\x1b[2Jsite\nINFO :      all well"},
    ],
)
def test_facts_of_the_wrong_kind_refuse_their_client_and_no_other(facts, tmp_path, caplog):
    strategy, folder = run(tmp_path, facts=told(**facts))
    summary = is_readable(folder)
    assert found(strategy) == {frozenset(f"partition-{i}" for i in g) for g in ((0, 1, 2), (3, 4))}
    assert len(summary["clients"]) == 5
    (problem,) = [r for r in caplog.records if "cannot take part" in r.getMessage()]
    assert next(iter(facts)) in problem.getMessage() and problem.getMessage().isprintable()


@pytest.mark.parametrize("group", [[1, 2], b"x", 0.5])
def test_a_group_of_the_wrong_kind_is_set_aside(group, tmp_path, caplog):
    _, folder = run(tmp_path, closing=told(group=group))
    assert HOSTILE not in is_readable(folder)["groups"]
    assert f"What client {HOSTILE} tells is set aside: group is" in caplog.text


def test_one_client_alone_does_not_make_up_a_rand_index(tmp_path):
    class Plain(Hostile):
        def _evaluate(self, message, context):
            reply = super()._evaluate(message, context)
            if context.node_config["partition-id"] < 5:
                del reply.content[FACTS]
            return reply

    recorder = Recorder(tmp_path)
    ClusteredFL(CRITERION, observers=[recorder], metric="loss").start(
        Plain(GROUPS).grid(), initial_arrays(), num_rounds=2
    )
    summary = is_readable(recorder.path)
    assert summary["groups"] is None and summary["adjusted_rand_index"] is None


@pytest.mark.parametrize(
    "metrics",
    [
        {"loss": [0.5, 0.6]},
        {"loss": 10**400},
        {"cluster": 7, "levels": 0.5, "best_cluster": 0.1, "num_examples": 3.0},
        {"cluster": [7.0]},
        {"fl_loss": [1.0], "leaf_loss": [2.0]},
    ],
)
@pytest.mark.parametrize("when", ["trained", "closing"])
def test_metrics_of_the_wrong_kind_leave_a_folder_that_can_be_read(metrics, when, tmp_path):
    strategy, folder = run(tmp_path, **{when: measured(**metrics)})
    summary = is_readable(folder)
    assert summary["clients"][HOSTILE]["cluster"] == strategy.cluster_of(HOSTILE)
    assert strategy.final_report.metrics["loss"] >= 0


def test_hundred_thousand_metrics_are_refused(tmp_path):
    many = {f"m{i}": 0.5 for i in range(100_000)}
    _, folder = run(tmp_path, rounds=2, trained=measured(**many))
    line = json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1])
    assert "has 1000" in line["problems"][HOSTILE]
    assert sum(path.stat().st_size for path in folder.rglob("*.json*")) < 100_000


def test_texts_in_replies_reach_log_and_folder_bounded_and_stripped(tmp_path, caplog):
    def spoil(content):
        arrays = content.array_records["arrays"]
        arrays["\x1b]0;x\x07\n" + "n" * 10**6] = next(iter(arrays.values()))

    _, folder = run(tmp_path, rounds=2, trained=spoil)
    is_readable(folder)
    assert all(len(r.getMessage()) < 2000 for r in caplog.records)
    assert "\x1b" not in caplog.text and "\x07" not in caplog.text
    assert "\\u001b" not in (folder / "rounds.jsonl").read_text()
    assert sum(path.stat().st_size for path in folder.rglob("*.json*")) < 100_000


@pytest.mark.parametrize("value", [-1e9, 1e308, 1.5, -0.1, 0.0])
def test_no_client_makes_up_the_mean_of_all(value, tmp_path, caplog):
    lies = measured(accuracy=value, **{"num-examples": 10**12})

    class Honest(Hostile):
        """All measure 0.9."""

        def _evaluate(self, message, context):
            reply = super()._evaluate(message, context)
            reply.content["metrics"]["accuracy"] = 0.9
            return reply

    clients = Honest((0,) * 10, tells={"evaluate": lies})
    recorder = Recorder(tmp_path)
    ClusteredFL(NeverSplit(), observers=[recorder]).start(
        clients.grid(), initial_arrays(), num_rounds=2
    )
    summary = is_readable(recorder.path)
    assert summary["metrics"]["accuracy"] == pytest.approx(0.9, abs=0.0901)
    plausible = 0 <= value <= 1
    assert ("accuracy" in summary["clients"]["partition-9"]) is plausible
    assert "count for at most 3 usual clients" in caplog.text
    assert ("What client partition-9 measured cannot be" in caplog.text) is not plausible
