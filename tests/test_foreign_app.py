"""An app of someone else, in NumPy: three lines bring it everything that cflower's own app has."""

import json
import logging
import shutil

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.server import LegacyContext, ServerApp, ServerAppComponents, ServerConfig
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
from safetensors.numpy import load_file

import cflower as package
from cflower import ClusteredFL, Observer, Recorder, ServerOptimizer, assign, simulate
from cflower.errors import CFlowerError, ConfigError, FederationError, RunFolderError
from cflower.simulation.inline_grid import InlineGrid
from tests.command import cflower
from tests.strategy.quadratics import CENTERS, CRITERION, clusters_of, initial_arrays, vector_of

GROUPS = (0, 0, 0, 1, 1, 1)
PLANTED = {frozenset(f"partition-{i}" for i in part) for part in ((0, 1, 2), (3, 4, 5))}
CONFIG = {"lr": 0.5, "data": "own", "big": True}
TRAIN = ConfigRecord({"lr": 0.5})
ROUNDS = 8


def client_app(named=True, keys=None, mods=()):
    """Quadratic clients, of any number of partitions, with an error as metric."""
    app = ClientApp()

    def center_of(context):
        return CENTERS[GROUPS[int(context.node_config["partition-id"]) % len(GROUPS)]]

    @app.train(mods=list(mods))
    def train(message, context):
        old = vector_of(message.content["arrays"])
        lr = message.content["config"]["lr"] * context.run_config.get("lr", 0.5) * 2
        new = old + lr * (center_of(context) - old)
        new = (new + 1e-3 * int(context.node_config["partition-id"])).astype(np.float32)
        arrays = ArrayRecord({"w": Array(new[:12].reshape(3, 4)), "b": Array(new[12:])})
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        key = (keys or {}).get(int(context.node_config["partition-id"]), "rmse")
        difference = vector_of(message.content["arrays"]) - center_of(context)
        metrics = {key: float(np.sqrt(np.mean(difference**2))), "num-examples": 5}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return package.name_clients(app) if named else app


def nodes(app=None):
    return InlineGrid(app or client_app(), len(GROUPS), CONFIG)


def start(out, *observers, app=None, resume="", metric="rmse"):
    """The three lines."""
    recorder = Recorder(out, config=CONFIG, resume=resume)
    strategy = ClusteredFL(CRITERION, metric=metric, observers=[recorder, *observers])
    strategy.start(nodes(app), initial_arrays(), ROUNDS, train_config=TRAIN)
    return strategy, recorder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    strategy, recorder = start(tmp_path_factory.mktemp("runs"))
    assert clusters_of(strategy) == PLANTED
    return recorder.path


def test_the_folder_holds_the_apps_own_config_and_a_report(run):
    begun = json.loads((run / "config.json").read_text())
    assert begun["config"] == CONFIG
    assert begun["settings"]["train-config"] == {"lr": 0.5}
    report = (run / "report.html").read_text()
    assert "rmse" in report and "own" in report


def test_an_error_reads_right_in_show_explain_compare(run, tmp_path):
    summary = json.loads((run / "summary.json").read_text())
    assert summary["metric"] == {"name": "rmse", "higher_is_better": False}
    assert summary["metrics"]["rmse"] < 0.1 < summary["metrics"]["fl_rmse"]
    shown, explained = cflower("show", run), cflower("explain", run)
    assert "mean rmse" in shown.stdout and "accuracy" not in shown.stdout
    own = f"{summary['clients']['partition-0']['rmse']:.4g}*"
    assert own in shown.stdout  # the smaller of the two has the star
    assert f"- this run: {summary['metrics']['rmse']:.4g} (" in explained.stdout
    again = shutil.copytree(run, tmp_path / "again")
    compared = cflower("compare", run, again)
    assert "0 clients better, 0 worse" in " ".join(compared.stdout.split())
    assert "rmse" in compared.stdout
    worst = max(client["rmse"] for client in summary["clients"].values())
    assert f"{worst:.4g}" in compared.stdout


def test_a_cluster_is_exported_under_the_apps_own_names(run, tmp_path):
    file = tmp_path / "mine.safetensors"
    done = cflower("export", run, "--client", "partition-0", "--output", file)
    assert done.returncode == 0, done.stderr
    exported = load_file(file)
    assert set(exported) == {"w", "b"}
    vector = np.concatenate([exported["w"].ravel(), exported["b"]])
    distances = [float(np.linalg.norm(vector - center)) for center in CENTERS[:2]]
    assert 10 * distances[0] < distances[1]
    assert "rmse" in file.with_name("mine.safetensors.md").read_text()
    refused = cflower("export", run, "--client", "partition-0", "--format", "onnx")
    assert "give --module package.module:factory" in refused.stderr


@pytest.mark.parametrize("client", [1, 4, 6, 9])
def test_a_newcomer_is_assigned_through_the_apps_own_client(run, client):
    placed = assign(run, app=client_app(), node_config={"partition-id": client})
    members = json.loads((run / "summary.json").read_text())["clusters"][placed.cluster]
    assert {GROUPS[int(name[-1])] for name in members} == {GROUPS[client % 6]}
    assert placed.stranger_at is None
    assert (placed.num_train, placed.num_held_out) == (10, 5)
    assert placed.best == placed.levels[-1]
    assert placed.levels[-1].metrics["rmse"] < 0.1 < placed.levels[0].metrics["rmse"]


def test_a_members_update_is_that_of_the_run(run):
    placed = assign(run, app=client_app(), node_config={"partition-id": 1})
    assert placed.levels[0].step is not None
    assert placed.levels[0].step.similarity == pytest.approx(1.0, abs=1e-6)


def test_assign_by_command_and_what_it_refuses(run, tmp_path):
    app = "tests.test_foreign_app:NAMED"
    placed = cflower("assign", run, "--app", app, "--node-config", "partition-id=7")
    assert "belongs to cluster" in placed.stdout and "rmse" in placed.stdout
    without = cflower("assign", run, "--app", app)
    sentence = "The newcomer's reply to the train message with the model of cluster 0 is an"
    assert sentence in " ".join(without.stderr.split())
    assert without.stderr.rstrip().endswith("Its app may need a node config: --node-config.")
    with pytest.raises(ConfigError, match="the module nosuch cannot be imported"):
        assign(run, app="nosuch:app")
    with pytest.raises(
        ConfigError, match=r"the newcomer's data .* or its ClientApp .*: got neither"
    ):
        assign(run)
    with pytest.raises(RunFolderError, match=r"of another app .* give --app instead of --data"):
        assign(run, tmp_path)


def test_without_lasting_names_resume_is_refused_in_a_sentence(tmp_path):
    def resumed(grid, config, resume=""):
        recorder = Recorder(tmp_path, config, resume=resume)
        strategy = ClusteredFL(CRITERION, observers=[recorder])
        strategy.start(grid, initial_arrays(), 2, train_config=TRAIN)

    unnamed, others = nodes(client_app(named=False)), nodes(client_app(named=False))
    others._contexts = {node + 7000: context for node, context in others._contexts.items()}
    resumed(unnamed, CONFIG)
    (folder,) = tmp_path.iterdir()
    with pytest.raises(FederationError, match=r"Cannot resume.*cflower\.name_clients\(app\)"):
        resumed(others, CONFIG, folder.name)
    with pytest.raises(RunFolderError, match=r"lr was 0\.5 and is 0\.25"):
        resumed(unnamed, CONFIG | {"lr": 0.25}, folder.name)


class Raises(Observer):
    def on_round(self, report):
        raise ValueError("no disk")


def test_an_observer_that_raises_is_logged_once(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        strategy, recorder = start(tmp_path, Raises())
    assert sum("no disk" in text for text in caplog.messages) == 1
    assert clusters_of(strategy) == PLANTED
    assert recorder.summary["finished"]


def test_a_metric_that_no_client_sends_is_reported_once(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        start(tmp_path, metric="f1")
    sentence = "No client sent the metric 'f1' (they sent rmse), so by it nothing is compared."
    assert sum(sentence in text for text in caplog.messages) == 1


def test_the_start_says_which_metric_leads_and_in_which_direction(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        start(tmp_path, metric="rmse")
    assert caplog.messages.count("The metric that leads: rmse (lower is better).") == 1
    with pytest.raises(CFlowerError, match="Got metric='my_figure', but whether higher or lower"):
        ClusteredFL(metric="my_figure")


def test_clients_may_send_different_keys(tmp_path):
    strategy, recorder = start(tmp_path, app=client_app(keys={0: "error", 3: "error", 4: "mae"}))
    assert clusters_of(strategy) == PLANTED
    clients = recorder.summary["clients"]
    assert "error" in clients["partition-0"] and "rmse" in clients["partition-1"]
    assert "mae" not in clients["partition-4"]  # nobody else sends it
    assert cflower("show", recorder.path).returncode == 0
    assert (recorder.path / "report.html").is_file()


@pytest.mark.parametrize("named", [False, True])
def test_only_an_app_that_can_answer_is_asked_for_names(tmp_path, named):
    grid, kinds = nodes(client_app(named=named)), []
    push = grid.push_messages

    def noted(messages):
        messages = list(messages)
        kinds.extend(message.metadata.message_type for message in messages)
        return push(messages)

    grid.push_messages = noted
    strategy = ClusteredFL(CRITERION)
    strategy.start(grid, initial_arrays(), 1, train_config=TRAIN)
    assert ("query.roll_call" in kinds) is named
    assert ("partition-0" in strategy.tree.clients) is named


PRIVATE = {
    "fixed": (
        lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 1e-4, 4.0, len(GROUPS)),
        fixedclipping_mod,
    ),
    "adaptive": (
        lambda inner: DifferentialPrivacyClientSideAdaptiveClipping(
            inner, 1e-4, len(GROUPS), initial_clipping_norm=4.0, clipped_count_stddev=0.01
        ),
        adaptiveclipping_mod,
    ),
    "local": (lambda inner: inner, LocalDpMod(4.0, 0.001, 10.0, 1e-5)),
}


@pytest.mark.parametrize("kind", PRIVATE)
def test_differential_privacy_on_the_clients_finds_the_groups(kind, caplog):
    caplog.set_level(logging.INFO, "flwr")
    wrap, mod = PRIVATE[kind]
    strategy, grid = ClusteredFL(CRITERION, personal=True), nodes(client_app(mods=[mod]))
    wrap(strategy).start(grid, initial_arrays(), ROUNDS, train_config=TRAIN)
    assert clusters_of(strategy) == PLANTED
    # A personal step would be further trainings, which the privacy budget does not include.
    assert len([m for m in caplog.messages if m.startswith("There will be no personal step")]) == 1
    assert not strategy.state.personal


@pytest.mark.parametrize("mods", [[fixedclipping_mod], []])
def test_a_wrapper_without_its_mod_on_the_clients_is_noticed(mods, caplog):
    strategy, grid = ClusteredFL(CRITERION), nodes(client_app(mods=mods))
    wrapper = DifferentialPrivacyClientSideFixedClipping(strategy, 1e-4, 0.05, len(GROUPS))
    wrapper.start(grid, initial_arrays(), 3, train_config=TRAIN)
    said = [m for m in caplog.messages if "longer than the clipping norm" in m]
    assert len(said) == (not mods)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: DifferentialPrivacyServerSideFixedClipping(inner, 1e-4, 4.0, len(GROUPS)),
        lambda inner: DifferentialPrivacyServerSideAdaptiveClipping(inner, 1e-4, len(GROUPS)),
    ],
)
def test_clipping_on_the_server_is_refused_in_a_sentence(wrap):
    with pytest.raises(CFlowerError, match=r"cannot be put around ClusteredFL.*ClientSide"):
        wrap(ClusteredFL(CRITERION)).start(nodes(), initial_arrays(), 2, train_config=TRAIN)


def test_noise_for_a_mean_is_refused_for_a_median():
    wrap, mod = PRIVATE["fixed"]
    strategy, grid = ClusteredFL(CRITERION, aggregation="fedmedian"), nodes(client_app(mods=[mod]))
    with pytest.raises(CFlowerError, match="not in a median"):
        wrap(strategy).start(grid, initial_arrays(), 2, train_config=TRAIN)


def test_secure_aggregation_is_refused_in_a_sentence():
    own = Context(1, 1, {}, RecordDict(), {})
    context = LegacyContext(own, ServerConfig(num_rounds=1), ClusteredFL(CRITERION))
    sums = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)
    with pytest.raises(ConfigError, match="secure aggregation shows the server only sums"):
        DefaultWorkflow(fit_workflow=sums)(nodes(), context)


@pytest.mark.parametrize("mod", [secagg_mod, secaggplus_mod])
@pytest.mark.parametrize("where", ["app", "training"])
def test_secure_aggregation_at_the_clients_is_refused_by_name(mod, where):
    app = ClientApp(mods=[mod] if where == "app" else [])

    @app.train(mods=[mod] if where == "training" else [])
    def train(message, context):
        return message

    with pytest.raises(ConfigError, match=f"has the mod {mod.__name__}, with which clients send"):
        simulate(app, 4, strategy=ClusteredFL(), arrays=initial_arrays(), num_rounds=2)


def test_server_app_components_are_refused_in_a_sentence():
    components = ServerAppComponents(strategy=ClusteredFL(), config=ServerConfig(num_rounds=2))
    server = ServerApp(server_fn=lambda context: components)
    with pytest.raises(ConfigError, match=r"ServerAppComponents .* call ClusteredFL.start"):
        simulate(client_app(), 4, server_app=server)


@pytest.mark.parametrize(
    ("rule", "untrained", "warnings"),
    [("fedadam", None, 1), ("fedadam", ["2", "3"], 0), ("fedadam", [], 0), ("fedavgm", None, 0)],
)
def test_a_list_of_arrays_with_an_adaptive_optimizer_is_warned_of(
    rule, untrained, warnings, caplog
):
    """Kernel, bias, running mean and variance, as Keras' ``get_weights()`` sends them."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = message.content["arrays"].to_numpy_ndarrays()
        moved = ArrayRecord([arrays[0] + 1, arrays[1], arrays[2] + 1, arrays[3] * 0.1])
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    given = {} if untrained is None else {"untrained": untrained}
    strategy = ClusteredFL(optimizer=ServerOptimizer(rule), **given)
    ones = ArrayRecord([np.ones(shape, np.float32) for shape in ((3, 2), 2, 2, 2)])
    with caplog.at_level(logging.WARNING):
        simulate(app, 4, strategy=strategy, arrays=ones, num_rounds=8)
    assert sum("numbers in place of names" in text for text in caplog.messages) == warnings
    if untrained == ["2", "3"]:
        assert (strategy.models["0"]["3"].numpy() > 0).all()


NAMED = client_app()
