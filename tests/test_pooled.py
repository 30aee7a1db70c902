"""Figures of all clients' examples together, by scikit-learn's and SciPy's."""

import json
import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from scipy.stats import binomtest
from sklearn.metrics import (
    confusion_matrix,
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
)

from cflower import ClusteredFL, NeverSplit, Recorder, simulate
from cflower.config import RunConfig
from cflower.data.client_data import client_data
from cflower.data.settings import DataSettings
from cflower.learning.classes import measured
from cflower.learning.models import build_model
from cflower.learning.training import predict
from cflower.pooled import BINS, WIDTH, auc_interval, counts_of, pooled, share
from tests.command import cflower

SITES = 8


def clients(seed, classes, sizes=(3, 40, 1, 200)):
    """Logits and labels of some clients; rare classes are missing at some."""
    rng = np.random.default_rng(seed)
    for size in sizes:
        labels = np.minimum(rng.geometric(0.6, size) - 1, classes - 1)
        yield 3 * np.eye(classes)[labels] + rng.normal(scale=3, size=(size, classes)), labels


def joined(parts):
    logits, labels = zip(*parts, strict=True)
    return np.concatenate(logits), np.concatenate(labels)


@pytest.mark.slow
@given(st.integers(0, 20), st.integers(2, 5))
def test_every_figure_is_scikit_learns_on_the_pooled_rows(seed, classes):
    parts = list(clients(seed, classes))
    logits, labels = joined(parts)
    said, found = logits.argmax(1), pooled(counts_of(*part) for part in parts)
    expected = confusion_matrix(labels, said, labels=range(classes))
    assert found.confusion == expected.tolist()
    held = sorted(set(labels))
    f1 = f1_score(labels, said, labels=held, average="macro", zero_division=0)
    assert found.f1.value == pytest.approx(f1, abs=1e-15)
    assert found.f1.interval[0] <= f1 <= found.f1.interval[1]
    assert (found.examples, found.clients) == (len(labels), len(parts))
    for label, one in enumerate(found.classes):
        truth, chosen = labels == label, said == label
        assert one.examples == truth.sum()
        assert one.clients == sum((own == label).any() for _, own in parts)
        if truth.any():
            assert one.sensitivity.value == recall_score(truth, chosen)
            assert one.f1 == pytest.approx(f1_score(truth, chosen), abs=1e-15)
        else:
            assert one.sensitivity is one.f1 is None
        if chosen.any():
            assert one.precision.value == precision_score(truth, chosen)
        if not truth.all():
            assert one.specificity.value == recall_score(~truth, ~chosen)


@given(st.integers(0, 20))
def test_auc_is_scikit_learns_of_the_pooled_rows_to_the_width_of_a_bin(seed):
    parts = list(clients(seed, 2))
    logits, labels = joined(parts)
    scores = logits[:, 1] - logits[:, 0]
    found = pooled(counts_of(*part) for part in parts).auc
    in_bins = np.clip(np.floor(scores / WIDTH), -BINS // 2, BINS // 2 - 1)
    assert found.value == pytest.approx(roc_auc_score(labels, in_bins), abs=1e-12)
    assert found.value == pytest.approx(roc_auc_score(labels, scores), abs=0.005)
    assert measured(logits, labels, 0.0)["auc"] == pytest.approx(roc_auc_score(labels, scores))


@given(st.integers(0, 30), st.integers(1, 30))
def test_the_interval_of_a_share_is_wilsons(part, more):
    whole = part + more
    expected = binomtest(part, whole).proportion_ci(method="wilson")
    assert share(part, whole).interval == pytest.approx([expected.low, expected.high], abs=1e-12)


def test_the_interval_of_an_auc_holds_it_and_has_a_width_even_with_one_positive():
    for value, first, second in ((1.0, 39, 1), (0.5, 10, 10), (0.0, 3, 200), (0.9, 300, 15)):
        low, high = auc_interval(value, first, second)
        assert 0 <= low <= value <= high <= 1 and high - low > 0.05


@pytest.mark.slow
def test_19_of_20_intervals_of_an_auc_hold_the_true_one():
    rng, inside, true = np.random.default_rng(0), 0, 0.7602  # Φ(1/√2)
    for _ in range(400):
        labels = np.arange(60) < 12
        value = roc_auc_score(labels, rng.normal(size=60) + labels)
        low, high = auc_interval(value, 48, 12)
        inside += low <= true <= high
    assert 0.93 < inside / 400 < 0.98


def test_the_interval_of_f1_has_a_width_where_no_positive_was_found():
    missed = [{"confusion": [77, 0, 3, 0]}]
    low, high = pooled(missed).f1.interval
    assert low < 0.49 < 0.6 < high < 0.9
    many = pooled([{"confusion": [770, 30, 40, 160]}]).f1
    assert many.interval == pytest.approx([many.value - 0.027, many.value + 0.027], abs=0.006)


def test_a_client_without_a_positive_counts_nothing_for_finding_them():
    negative = np.array([[1.0, 0.0]] * 5), np.zeros(5, int)
    assert "f1" not in measured(*negative, 0.0) and "auc" not in measured(*negative, 0.0)
    missed = np.array([[1.0, 0.0]] * 2), np.array([0, 1])
    found = pooled([counts_of(*negative), counts_of(*missed)])
    assert found.classes[1].sensitivity.value == 0.0 and found.classes[1].clients == 1
    assert found.f1.value < 0.5


def test_counts_that_are_none_are_left_out():
    good = counts_of(np.array([[1.0, 0.0]] * 5), np.zeros(5, int))
    wrong = ([-1, 0, 0, 0], [0.5, 0, 0, 0], [1, 2, 3], "text", [True, 0, 0, 0], [2**40, 0, 0, 0])
    some = pooled([good, good, {}, *({"confusion": one} for one in wrong)])
    assert some.confusion == [[10, 0], [0, 0]] and some.clients == 2
    assert pooled([{"accuracy": 1.0}]) is None and pooled([{"confusion": [0, 0, 0, 0]}]) is None
    assert pooled([{"confusion": [1, 2, 3]}]) is None


@pytest.fixture(scope="module")
def screening(tmp_path_factory):
    """Eight sites, 5 % of the rows positive: a run by AUC, and its folder."""
    folder, rng = tmp_path_factory.mktemp("screening"), np.random.default_rng(0)
    for site in range(SITES):
        sick = rng.permutation(300) < 15
        marker = rng.normal(size=300) + 2 * sick
        rows = zip(marker, rng.normal(size=300), np.where(sick, "sick", "well"), strict=True)
        lines = [f"{one:.3f},{two:.3f},{label}" for one, two, label in rows]
        (folder / f"site-{site}.csv").write_text("\n".join(["marker,noise,outcome", *lines]))
    config = (
        f"dataset='{folder}' label-column='outcome' partitioner='natural-id' shift='none' "
        "natural-id-column='file' model='linear' num-server-rounds=6 min-available-nodes=8 "
        "metric='auc' personal=false validation-fraction=0.4"
    )
    done = cflower("simulate", "--clients", SITES, "--out", folder / "runs", "-c", config)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "runs").iterdir()
    return run, done.stdout


def test_a_clinicians_run_is_scikit_learns_on_the_reported_rows_of_all_sites(screening):
    run, printed = screening
    summary = json.loads((run / "summary.json").read_text())
    config = json.loads((run / "config.json").read_text())["config"]
    settings = RunConfig.read(config).part(DataSettings)
    known = json.dumps(json.loads((run / "examples.json").read_text())["preparation"])
    sites = [client_data(settings, site, SITES, preparation=known) for site in range(SITES)]
    parts = [data.report for data in sites]
    model = build_model("linear", parts[0].input_shape, 2, 0)
    model.load_state_dict(load_file(run / "models" / "0.safetensors"))
    logits = np.concatenate([predict(model, part) for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    assert [int((part.labels == 0).sum()) for part in parts] == [3] * SITES  # stratified
    own, names = summary["pooled"]["own"], summary["class_names"]
    sick = own["classes"][names.index("sick")]
    truth, said = labels == 0, logits.argmax(1) == 0
    assert sick["examples"] == 3 * SITES and sick["clients"] == SITES
    assert sick["sensitivity"]["value"] == recall_score(truth, said)
    assert sick["specificity"]["value"] == recall_score(~truth, ~said)
    assert sick["precision"]["value"] == precision_score(truth, said)
    assert own["f1"]["value"] == pytest.approx(f1_score(truth, said, average="macro"), abs=1e-15)
    auc = roc_auc_score(labels, logits[:, 1] - logits[:, 0])
    assert own["auc"]["value"] == pytest.approx(auc, abs=0.001)
    assert summary["metrics"]["auc"] == own["auc"]["value"] > 0.85
    assert "auc of all clients' held-out examples together:" in printed
    assert f"AUC {own['auc']['value']:.1%} (" in printed
    assert re.search(r"\n sick +24 +8 of 8 ", printed)


def test_table_report_and_card_show_the_same_figures(screening, tmp_path):
    run, _ = screening
    summary = json.loads((run / "summary.json").read_text())
    low, high = (100 * bound for bound in summary["pooled"]["own"]["auc"]["interval"])
    words = f"({low:.1f}-{high:.1f})"
    assert words in cflower("show", run).stdout
    assert words in (run / "report.html").read_text()
    done = cflower("export", run, "--cluster", "0", "--output", tmp_path / "model.safetensors")
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "model.safetensors.md").read_text()
    assert words in card and "| sick | 24 | 8 of 8 |" in card


def test_auc_of_more_than_two_classes_is_refused_in_one_sentence(tmp_path):
    config = "metric='auc' model='linear' shift='none' num-server-rounds=1"
    done = cflower("simulate", "--out", tmp_path, "-c", config)
    assert done.returncode == 1
    assert "Got metric='auc', but the clients have 10 classes and not two" in done.stderr


def test_any_app_that_sends_its_confusion_matrix_gets_the_figures_of_all_clients(tmp_path):
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = ArrayRecord({"w": Array(np.full(4, float(context.node_config["partition-id"])))})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 10})})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        ill = int(context.node_config["partition-id"]) % 2  # at every second client
        counts = [7, 1, ill, ill]
        metrics = MetricRecord({"f1": 1.0, "confusion": counts, "num-examples": sum(counts)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    recorder = Recorder(tmp_path)
    strategy = ClusteredFL(NeverSplit(), metric="f1", observers=[recorder])
    arrays = ArrayRecord({"w": Array(np.zeros(4))})
    result = simulate(app, 6, strategy=strategy, arrays=arrays, num_rounds=2)
    own = recorder.summary["pooled"]["own"]
    assert own["confusion"] == [[42, 6], [3, 3]] and own["auc"] is None
    assert own["classes"][1]["clients"] == 3 and own["classes"][1]["sensitivity"]["value"] == 0.5
    f1 = (2 * 42 / (48 + 45) + 2 * 3 / (6 + 9)) / 2
    assert recorder.summary["metrics"]["f1"] == pytest.approx(f1)
    assert result.cluster_metrics["0"]["f1"] == pytest.approx(f1)
    assert "confusion" not in result.cluster_metrics["0"]
