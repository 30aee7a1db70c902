"""No client stops the run of the others, or makes the run folder unreadable."""

import time
from dataclasses import dataclass, field

import pytest
from flwr.app import ConfigRecord, MetricRecord

from cflower import ClusteredFL, Recorder
from cflower.algorithm.criteria import NeverSplit
from cflower.messages.client_names import FACTS
from cflower.runs.record import RunRecord
from cflower.runs.report import write_report
from cflower.runs.report.content import page_content
from cflower.runs.tables import as_text, run_view
from tests.command import output_of
from tests.run_content import read_json
from tests.strategy.quadratics import CRITERION, Quadratics, clusters_of, initial_arrays

GROUPS = (0, 0, 0, 1, 1, 1)
HOSTILE = "partition-5"


@dataclass
class Hostile(Quadratics):
    """The last client's replies are changed in place by ``changes``, by the type of message."""

    changes: dict = field(default_factory=dict)

    def app(self):
        app = super().app()

        def client(message, context):
            reply = app(message, context)
            kind = message.metadata.message_type
            last = context.node_config["partition-id"] == len(self.groups) - 1
            if last and kind in self.changes and not reply.has_error():
                self.changes[kind](reply.content)
            return reply

        client._registered_funcs = app._registered_funcs
        return client


def run(tmp_path, rounds=8, kind=Hostile, **changes):
    """A run with changed replies of the last client, and its folder."""
    clients = kind(GROUPS, metrics=lambda client: {"accuracy": 0.5 + 0.01 * client})
    kinds = {"facts": "query.roll_call", "trained": "train.default", "closing": "evaluate.default"}
    # Flower leaves the default action out of a message's type.
    clients.changes = {kinds[name].removesuffix(".default"): c for name, c in changes.items()}
    recorder = Recorder(tmp_path)
    strategy = ClusteredFL(CRITERION, metric="loss", observers=[recorder], min_available_nodes=2)
    strategy.start(clients.grid(), initial_arrays(), num_rounds=rounds)
    return strategy, recorder.path


def is_readable(folder):
    """Read the folder as `cflower show` and `cflower report` do; the summary."""
    record = RunRecord.read(folder)
    assert record.finished and as_text(run_view(record.summary, record.clusters))
    assert write_report(folder).is_file()
    return read_json(folder, "summary.json")


def reported(**facts):
    def change(content):
        record = content.config_records.get(FACTS) or ConfigRecord()
        changed = {**record, **facts}
        content[FACTS] = ConfigRecord({k: v for k, v in changed.items() if v is not None})

    return change


def measured(**metrics):
    def change(content):
        content["metrics"] = MetricRecord({**content["metrics"], **metrics})

    return change


@pytest.mark.parametrize(
    "facts", [{"class-names": 5}, {"client-id": "\x1b[2Jsite\nINFO :      all well"}]
)
def test_a_client_with_invalid_facts_is_refused_and_no_other(facts, tmp_path, caplog):
    strategy, folder = run(tmp_path, facts=reported(**facts))
    summary = is_readable(folder)
    others = {frozenset(f"partition-{i}" for i in g) for g in ((0, 1, 2), (3, 4))}
    assert clusters_of(strategy) == others
    assert len(summary["clients"]) == 5
    (problem,) = [r for r in caplog.records if "cannot take part" in r.getMessage()]
    assert next(iter(facts)) in problem.getMessage() and problem.getMessage().isprintable()


IMAGES = {"sample-images": b"\1" * 8, "sample-shape": [2, 2, 1], "sample-labels": [0, 1]}
MEANS = {"mean-examples": b"\0" * 16, "mean-shape": [1, 4]}


@pytest.mark.slow
@pytest.mark.parametrize(
    "facts",
    [
        {"label-counts": None},
        {"label-counts": [2, 1], **IMAGES, "sample-images": b"", "sample-shape": [0, 0, 1]},
        {"label-counts": [2, 1], "mean-examples": b"\0" * 16},
        {
            "label-counts": [2**53, 2**53],
            **IMAGES,
            "mean-examples": b"\xff" * 16,
            "mean-shape": [4, 1],
        },
        {"label-counts": [0, 0], **MEANS},
        {"input-shape": [2**53, 2**53], "client-id": "a"},  # the first one
        {"class-names": ["x"] * 3, "label-counts": [1, 1, 1], "client-id": "a"},
    ],
)
def test_what_a_client_says_of_its_data_is_refused_or_can_be_shown(facts, tmp_path):
    class Described(Hostile):
        def _answer(self, message, context):
            reply = super()._answer(message, context)
            usual = {"class-names": ["a", "b"], "label-counts": [3, 4], "input-shape": [1, 2, 2]}
            return reported(**usual, **IMAGES)(reply.content) or reply

    _, folder = run(tmp_path, kind=Described, facts=reported(**facts))
    is_readable(folder)
    record = RunRecord(folder)
    assert record.data_spec == ((1, 2, 2), ("a", "b"))  # those of most clients
    content = page_content(record)
    assert content["failed"] == {}
    assert content["data"]["classes"] == ["a", "b"]
    for command in ("list", "show", "explain"):
        where = ["--runs", tmp_path] if command == "list" else [folder]
        assert output_of(command, *where)


def test_an_invalid_group_is_ignored(tmp_path, caplog):
    _, folder = run(tmp_path, closing=reported(group=[1, 2]))
    assert HOSTILE not in is_readable(folder)["groups"]
    assert HOSTILE in caplog.text and "group is" in caplog.text


@pytest.mark.parametrize(("reporting", "index"), [(0, False), (1, False), (3, False), (4, True)])
def test_a_rand_index_needs_the_groups_of_most_clients(tmp_path, reporting, index):
    class Plain(Hostile):
        def _evaluate(self, message, context):
            reply = super()._evaluate(message, context)
            if context.node_config["partition-id"] >= reporting:
                del reply.content[FACTS]
            return reply

    _, folder = run(tmp_path, rounds=2, kind=Plain)
    summary = is_readable(folder)
    assert (summary["groups"] is not None) is index
    assert (summary["adjusted_rand_index"] is not None) is index


@pytest.mark.slow
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
def test_invalid_metrics_leave_a_readable_folder(metrics, when, tmp_path):
    strategy, folder = run(tmp_path, **{when: measured(**metrics)})
    summary = is_readable(folder)
    assert summary["clients"][HOSTILE]["cluster"] == strategy.cluster_of(HOSTILE)
    assert strategy.final_report.metrics["loss"] >= 0


def unknown_array(content):
    arrays = content.array_records["arrays"]
    arrays["\x1b]0;x\x07\n" + "n" * 10**6] = next(iter(arrays.values()))


@pytest.mark.parametrize("spoil", [unknown_array, measured(**{f"m{i}": 0.5 for i in range(10**5)})])
def test_what_is_large_in_replies_is_short_and_printable_in_log_and_folder(spoil, tmp_path, caplog):
    _, folder = run(tmp_path, rounds=2, trained=spoil)
    is_readable(folder)
    assert all(len(r.getMessage()) < 2000 for r in caplog.records)
    assert "\x1b" not in caplog.text and "\x07" not in caplog.text
    assert "\\u001b" not in (folder / "rounds.jsonl").read_text()
    assert sum(path.stat().st_size for path in folder.rglob("*.json*")) < 100_000


@pytest.mark.parametrize("value", [-1e9, 1e308, 1.5, -0.1, 0.0, float("nan")])
def test_no_client_decides_the_mean_of_all(value, tmp_path, caplog):
    false = measured(accuracy=value, **{"num-examples": 10**12})

    class Honest(Hostile):
        """All measure 0.9."""

        def _evaluate(self, message, context):
            reply = super()._evaluate(message, context)
            reply.content["metrics"]["accuracy"] = 0.9
            return reply

    clients = Honest((0,) * 10, changes={"evaluate": false})
    recorder = Recorder(tmp_path)
    strategy = ClusteredFL(NeverSplit(), observers=[recorder])
    strategy.start(clients.grid(), initial_arrays(), num_rounds=2)
    summary = is_readable(recorder.path)
    # It counts for three usual clients among the other nine.
    assert summary["metrics"]["accuracy"] == pytest.approx(0.9, abs=0.9 * 3 / 12 + 1e-4)
    plausible = 0 <= value <= 1
    assert ("accuracy" in summary["clients"]["partition-9"]) is plausible
    assert "numbers of examples are far above the median" in caplog.text
    ignored = any("Implausible" in text and "partition-9" in text for text in caplog.messages)
    assert ignored is not plausible


def greedy(**metrics):
    """A client that also sends these metrics, each under a new name in every round."""

    def change(content):
        change.number = getattr(change, "number", 0) + 1
        named = {f"{change.number}-{name}": value for name, value in metrics.items()}
        content["metrics"] = MetricRecord({**content["metrics"], **named})

    return change


GREEDY = {
    "too many numbers": {f"list-{i}": [0.5] * 1000 for i in range(11)},
    "lists": {f"list-{i}": [0.5] * 1000 for i in range(9)},
    "names": {f"{i}-{'n' * 180}": 0.5 for i in range(990)},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", GREEDY)
def test_what_one_client_sends_alone_is_neither_kept_nor_read_for_ever(kind, tmp_path, caplog):
    strategy, folder = run(tmp_path, rounds=24, trained=greedy(**GREEDY[kind]))
    is_readable(folder)
    assert (folder / "rounds.jsonl").stat().st_size < 200_000  # 24 rounds of six clients
    assert not [name for name in strategy.final_report.by_round[3] if "-" in name]
    reason = strategy.failures.excluded[HOSTILE]
    if kind == "too many numbers":
        assert "has more than 10,000 numbers in its metrics" in reason
    else:
        assert "is not read: its replies took 1." in reason
        assert "Metrics that no other client sends are ignored: 1-" in caplog.text
        assert {frozenset(f"partition-{i}" for i in range(3))} <= clusters_of(strategy)


@pytest.mark.slow
def test_what_a_client_has_used_up_counts_when_the_run_goes_on(tmp_path):
    """With half of the rounds in another process it is read no longer than without."""

    def started(folder, rounds, greed, resume=""):
        clients = Hostile(GROUPS, changes={"train": greed})
        recorder = Recorder(folder, resume=resume, say=lambda text: None)
        keys = {"metric": "loss", "personal": False}
        strategy = ClusteredFL(CRITERION, observers=[recorder], **keys)
        strategy.start(clients.grid(), initial_arrays(), num_rounds=rounds)
        return strategy, recorder.path

    alone, twice = greedy(**GREEDY["lists"]), greedy(**GREEDY["lists"])
    whole, _ = started(tmp_path / "whole", 24, alone)
    _, half = started(tmp_path / "halves", 12, twice)
    halves, _ = started(half.parent, 24, twice, half.name)
    before, after = (one.failures.problems[HOSTILE] for one in (whole, halves))
    assert before > 5
    assert abs(after - before) <= 1  # the last round of a run has no evaluation of its own


@pytest.mark.parametrize("fields", [10**5, 10**6])
def test_a_long_dtype_is_not_parsed(fields, tmp_path):
    def change(content):
        content["arrays"]["w"].dtype = ",".join(["f4"] * fields)

    began = time.monotonic()
    strategy, _ = run(tmp_path, rounds=2, trained=change)
    assert strategy.failures.problems == {HOSTILE: 2}
    assert time.monotonic() - began < 20  # a million fields took NumPy 30 s for each reply


def test_the_metrics_that_two_clients_send_are_kept(tmp_path):
    class Two(Hostile):
        def _train(self, message, context):
            reply = super()._train(message, context)
            if context.node_config["partition-id"] in (1, 4):
                measured(recall=0.5)(reply.content)
            return reply

    strategy, _ = run(tmp_path, rounds=2, kind=Two)
    assert strategy.final_report.by_round[2]["recall"] == 0.5
