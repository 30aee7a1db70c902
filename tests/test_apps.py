"""Apps in the shape that people have: each has one habit of Flower's examples."""

import json
import logging
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

from cflower import ClusteredFL, Observer, Recorder, name_clients, simulate
from cflower.errors import ConfigError, FederationError, RunFolderError
from cflower.strategy.results import html_table
from tests.command import output_of
from tests.strategy.quadratics import CENTERS, CRITERION, clusters_of, initial_arrays, vector_of

GROUPS = (0, 0, 0, 1, 1, 1)
ROUNDS = 8


def app_of(metrics=("eval_loss", "eval_acc"), mods=(), named=True):
    """A ClientApp with mods on all messages, and metrics under the names of Flower's examples."""
    app = ClientApp(mods=list(mods))

    def received(message, context):
        center = CENTERS[GROUPS[int(context.node_config["partition-id"])]]
        return vector_of(message.content["arrays"]), center

    @app.train()
    def train(message, context):
        old, center = received(message, context)
        new = (old + 0.5 * (center - old)).astype(np.float32)
        arrays = ArrayRecord({"w": Array(new[:12].reshape(3, 4)), "b": Array(new[12:])})
        metrics = MetricRecord({"train_loss": 0.5, "train_acc": 1.0, "num-examples": 10})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        old, center = received(message, context)
        loss = float(np.mean((old - center) ** 2))
        values = {"loss": loss, "acc": 1 / (1 + loss), "each": [loss, 2 * loss]}
        sent = {name: values[name.rpartition("_")[2]] for name in metrics}
        record = MetricRecord({**sent, "num-examples": 10})
        return Message(RecordDict({"metrics": record}), reply_to=message)

    return name_clients(app) if named else app


def run(out, app=None, wrap=lambda strategy: strategy, kind=ClusteredFL, start=None, **settings):
    """The three lines; the strategy and the recorder."""
    recorder = Recorder(out, config={})
    strategy = kind(CRITERION, observers=[recorder], **settings)
    simulate(
        app or app_of(),
        len(GROUPS),
        strategy=wrap(strategy),
        arrays=initial_arrays(),
        num_rounds=ROUNDS,
        **(start or {}),
    )
    assert {len(members) for members in clusters_of(strategy)} == {3}
    return strategy, recorder


def test_eval_acc_leads_and_round_1_says_so(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        _, recorder = run(tmp_path, fraction_evaluate=1.0)
    assert recorder.summary["metric"] == {"name": "eval_acc", "higher_is_better": True}
    first = caplog.text.partition("[ROUND 2/")[0]
    assert "Most clients send no metric accuracy: eval_acc leads instead" in first
    assert caplog.text.count("leads instead") == 1
    shown = output_of("show", recorder.path)
    assert "- this run: 9" in shown and "client × model (eval_acc" in shown
    assert "mean eval_loss" in output_of("show", recorder.path, "--metric", "eval_loss")
    output_of("report", recorder.path, "--metric", "eval_loss")
    assert '"name":"eval_loss"' in (recorder.path / "report.html").read_text()


def test_a_split_is_judged_by_eval_acc_too(tmp_path):
    _, recorder = run(tmp_path, trial_rounds=1)
    assert recorder.summary["splits"][0]["trial"] == "confirmed"
    assert "eval_acc" in recorder.summary["splits"][0]["verdict"]


def test_the_figures_of_evaluate_fn_are_in_log_folder_and_report(tmp_path, caplog):
    def evaluate(server_round, arrays):
        return MetricRecord({"accuracy": server_round / 16, "loss": 0.25})

    with caplog.at_level(logging.INFO, "flwr"):
        _, recorder = run(tmp_path, start={"evaluate_fn": evaluate})
    assert caplog.text.count("Global evaluation") == ROUNDS + 1
    assert "MetricRecord: {'accuracy': 0.5" in caplog.text
    assert recorder.summary["central"] == {"accuracy": 0.5, "loss": 0.25}
    assert '"central":{"accuracy":0.5' in (recorder.path / "rounds.jsonl").read_text()
    shown = " ".join(output_of("show", recorder.path).split())
    assert "central evaluation (evaluate_fn), mean accuracy over the clusters: 50.0%" in shown
    assert "mean accuracy over the clusters" in (recorder.path / "report.html").read_text()


def test_a_list_of_numbers_is_averaged_as_by_fedavg(tmp_path):
    ours, _ = run(tmp_path, app_of(metrics=["eval_each"]))
    theirs = FedAvg(fraction_evaluate=1.0)
    options = {"arrays": initial_arrays(), "num_rounds": 1}
    mean = simulate(app_of(metrics=["eval_each"]), 6, strategy=theirs, **options)
    again = simulate(app_of(metrics=["eval_each"]), 6, strategy=ClusteredFL(), **options)
    each = [result.evaluate_metrics_clientapp[1]["eval_each"] for result in (mean, again)]
    assert each[1] == pytest.approx(each[0])
    assert set(ours.final_report.metrics) >= {"eval_each", "leaf_eval_each"}


class WithStart(ClusteredFL):
    """As in Flower's advanced examples: `start` is a loop of its own."""

    start = FedAvg.start


class WithConfig(ClusteredFL):
    """As in Flower's advanced examples: the learning rate depends on the round."""

    def configure_train(self, server_round, arrays, config, grid):
        config = ConfigRecord({**config, "lr": 0.1 / server_round})
        return super().configure_train(server_round, arrays, config, grid)


def test_a_start_of_its_own_is_said_to_leave_out_questions_and_the_final_table(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        run(tmp_path, kind=WithStart, start={"train_config": ConfigRecord({"lr": 0.1})})
    sentence = "without questions about splits, moves and the final evaluation"
    assert sum(sentence in text for text in caplog.messages) == 1


def test_a_configure_train_of_its_own(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        _, recorder = run(tmp_path, kind=WithConfig)
    assert "Another `start`" not in caplog.text
    assert recorder.summary["finished"]


def timed(message, context, call_next):
    """A mod on all messages, such as one that writes to TensorBoard."""
    began, reply = time.monotonic(), call_next(message, context)
    if reply.has_content() and "metrics" in reply.content:
        reply.content["metrics"]["seconds"] = time.monotonic() - began
    return reply


@pytest.mark.parametrize("named", [False, True])
def test_mods_on_all_messages(tmp_path, named):
    strategy, _ = run(tmp_path, app_of(mods=[timed], named=named))
    assert {name.isdigit() for name in strategy.tree.clients} == {not named}


@pytest.mark.parametrize("named", [False, True])
def test_a_privacy_mod_on_all_messages(tmp_path, named, caplog):
    def wrap(strategy):
        return DifferentialPrivacyClientSideFixedClipping(strategy, 1e-4, 4.0, len(GROUPS))

    strategy, _ = run(tmp_path, app_of(mods=[fixedclipping_mod], named=named), wrap)
    # The mod finds no model in the roll call, so that nobody tells a name, and the run goes on.
    assert all(name.isdigit() for name in strategy.tree.clients)
    assert caplog.text.count("failed in the roll call and have no lasting name") == named
    root = strategy.tree.root.model.trained
    assert np.isfinite(root).all() and root.any()
    assert strategy.final_report is None  # the wrapper's rounds have no final evaluation


def test_trees_are_refused_in_words_about_trees():
    arrays = ArrayRecord({"0": Array(np.frombuffer(b"{}", np.uint8))})
    with pytest.raises(ConfigError, match="the decision trees of XGBoost"):
        simulate(app_of(), 6, strategy=ClusteredFL(), arrays=arrays)


def test_a_finished_run_never_loses_rounds_or_baselines(tmp_path):
    strategy, recorder = run(tmp_path)
    recorder.add_baseline("isolated", strategy.final_report)
    before = recorder.path / "summary.json"
    stored = before.read_text()

    def resumed(num_rounds):
        again = Recorder(tmp_path, config={}, resume=recorder.path.name)
        strategy = ClusteredFL(CRITERION, observers=[again])
        options = {"arrays": initial_arrays(), "num_rounds": num_rounds}
        simulate(app_of(), len(GROUPS), strategy=strategy, **options)

    with pytest.raises(RunFolderError, match=rf"num-server-rounds=3, but .* has {ROUNDS} rounds"):
        resumed(3)
    assert before.read_text() == stored
    resumed(ROUNDS)
    assert json.loads(before.read_text()) == json.loads(stored)


class StopsAfter3(Observer):
    def on_round(self, report):
        return report.server_round == 3


def test_an_observer_ends_the_run_with_the_final_evaluation(tmp_path):
    recorder = Recorder(tmp_path, config={})
    strategy = ClusteredFL(CRITERION, observers=[StopsAfter3(), recorder])
    options = {"arrays": initial_arrays(), "num_rounds": ROUNDS}
    result = simulate(app_of(), len(GROUPS), strategy=strategy, **options)
    assert (recorder.summary["rounds"], recorder.summary["finished"]) == (3, True)
    assert set(result.train_metrics_clientapp) == {1, 2, 3}
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    assert "<td>0</td>" in result._repr_html_()
    assert "one model serves all 6 clients" in recorder._repr_html_()
    assert "<td>&lt;b&gt;</td>" in html_table(["a"], [["<b>"]])


def test_too_few_clients_are_an_error_with_its_cures():
    def server(grid, context):
        ClusteredFL(min_available_nodes=7).start(grid, initial_arrays(), 1)

    with pytest.raises(FederationError, match=r"needs 7 clients .* or --clients 7 to"):
        simulate(app_of(), len(GROUPS), server_app=server)
