"""The direction and range of metrics, and means that no single client decides."""

import pytest

from cflower.errors import ConfigError
from cflower.messages.grouped_log import GroupedLog
from cflower.messages.metrics import ClientMetrics, Leader, mean_over_clients, plausible
from cflower.metric import Metric, direction_of

LOWER = [
    "loss",
    "val_loss",
    "eval/loss",
    "loss_epoch",
    "perplexity",
    "error_rate",
    "mean_absolute_error",
    "MeanSquaredError",
    "rmse",
    "test-rmse",
    "mse",
    "valMAE",
]
HIGHER = [
    "accuracy",
    "acc",
    "val_acc",
    "acc@1",
    "MulticlassAccuracy",
    "top5_accuracy",
    "f1",
    "F1Score",
    "answer_f1",
    "recall_macro",
    "precision",
    "rocAUC",
    "AUROC",
    "r2_score",
]
UNKNOWN = [
    "power",
    "lossless_ratio",
    "accumulated",
    "sauce",
    "entropy",
    "n_clients",
    "nll",
    "bleu",
    "neg_mean_squared_error",
    "d2_absolute_error_score",
]


@pytest.mark.parametrize("name", sorted(LOWER))
def test_losses_and_errors_are_better_the_lower_they_are(name):
    assert not Metric.of(name).higher_is_better
    assert Metric.of(name, True).higher_is_better
    assert Metric.of(name).best([0.1, 0.2]) == Metric.of(name).worst([0.1, 0.0]) == 0.1
    assert direction_of(f"val_{name}") is direction_of(f"{name}_mean") is False


@pytest.mark.parametrize("name", sorted(HIGHER))
def test_scores_are_better_the_higher_they_are(name):
    assert Metric.of(name).higher_is_better
    assert not Metric.of(name, False).higher_is_better
    assert direction_of(f"eval_{name}") is direction_of(f"{name}_mean") is True


@pytest.mark.parametrize("name", sorted(UNKNOWN))
def test_a_name_that_shows_no_direction_is_refused_with_what_to_give(name):
    with pytest.raises(ConfigError, match=f"metric='{name}'.*higher_is_better=True or"):
        Metric.of(name)
    assert Metric.of(name, False) == Metric(name, False)


@pytest.mark.parametrize(
    ("sent", "leads"),
    [
        ("eval_loss eval_acc train_acc", "eval_acc"),
        ("top5_accuracy validation_accuracy loss", "validation_accuracy"),
        ("loss f1 mae", "f1"),
        ("auc val_loss runtime", "auc"),
        ("eval_runtime eval_loss", "eval_loss"),
        ("mae mse", "mse"),
        ("mae rmse mse", "rmse"),
        ("test_mean_absolute_error", "test_mean_absolute_error"),
        ("rmse my_accuracy_loss", "my_accuracy_loss"),
        ("train_loss latency n_clients", "accuracy"),
        ("neg_log_loss", "accuracy"),
    ],
)
def test_without_accuracy_the_best_known_metric_leads(sent, leads):
    leading = Leader(Metric())
    assert leading.among([dict.fromkeys(sent.split(), 0.5)] * 3) == Metric.of(leads)
    assert Leader(Metric("mae", False)).among([{"rmse": 1.0, "mae": 1.0}]).name == "mae"


def test_values_above_1_are_no_shares():
    leading = Leader(Metric())
    per_cent = leading.among([{"accuracy": 99.3}, {"accuracy": 0.4}, {"accuracy": 98.0}])
    assert (per_cent.share, per_cent.in_words(99.306), per_cent.in_words(0.4)) == (
        *(False, "99.31", "0.4"),
    )
    assert not leading.among([{"accuracy": 0.4}]).share  # once in per cent, always
    assert leading.among([]).as_json() == {"name": "accuracy", "higher_is_better": True}
    one_lies = Leader(Metric()).among([{"accuracy": 99.3}, {"accuracy": 0.4}, {}])
    assert one_lies.share
    assert Metric().in_words(93.06) == "93.06"  # also where only one value is known


@pytest.mark.parametrize(
    ("name", "share"),
    [(name, True) for name in ("eval_acc", "answer_f1", "recalls", "rocAUC")]
    + [(name, False) for name in ("accumulated_cost", "sauce_score", "power", "acc_loss", "wer")],
)
def test_shares_are_percentages(name, share):
    assert Metric(name).share is share
    assert Metric(name).in_words(0.5) == ("50.0%" if share else "0.5")


@pytest.mark.parametrize(
    ("name", "values", "left"),
    [
        ("accuracy", (0.9, 0.0, 1.0), (0.9, 0.0, 1.0)),
        ("accuracy", (0.9, 0.8, 1.01), (0.9, 0.8, None)),
        ("val_acc", (90.0, 80.0, 101.0, -1.0), (90.0, 80.0, None, None)),
        ("loss", (0.1, 0.2, 999.0), (0.1, 0.2, 999.0)),
        ("loss", (0.1, 0.2, 1001.0), (0.1, 0.2, None)),
        ("loss", (-3.0, 2.0, -1e9), (-3.0, 2.0, None)),
        ("mse", (1e9, 2e9, 1e11, 1e308), (1e9, 2e9, 1e11, None)),
        ("accuracy_per_watt", (500.0, 600.0, 2000.0), (500.0, 600.0, 2000.0)),
        ("recalls", ([0.1], [5.0], [9.0]), ([0.1], [5.0], [9.0])),
    ],
)
def test_implausible_values_are_dropped(name, values, left):
    clients = {str(i): ClientMetrics({name: value}, 1) for i, value in enumerate(values)}
    kept = plausible(clients, GroupedLog()).values()
    assert tuple(one.metrics.get(name) for one in kept) == left


def test_metrics_that_one_client_of_three_sends_alone_are_ignored(caplog):
    sent = {"a": {"loss": 1.0}, "b": {"loss": 2.0}, "c": {"loss": 3.0, "mine": 1.0}}
    measured = {name: ClientMetrics(one, 1) for name, one in sent.items()}
    assert plausible(measured, GroupedLog())["c"].metrics == {"loss": 3.0}
    assert "no other client sends are ignored: mine, sent by client c" in caplog.text
    two = {name: measured[name] for name in "bc"}
    assert plausible(two, GroupedLog()) == two


def test_the_mean_of_similar_clients_is_weighted_by_examples():
    clients = [ClientMetrics({"loss": float(i)}, i) for i in (1, 2, 3)]
    assert mean_over_clients(clients)["loss"] == pytest.approx(14 / 6)
    clients = [ClientMetrics({"accuracy": 0.9}, 100)] * 9 + [ClientMetrics({"accuracy": 0}, 1e12)]
    assert mean_over_clients(clients)["accuracy"] == pytest.approx(0.9 * 9 / 12)


def test_a_figure_that_needs_two_classes_is_said_to_come_at_the_end(caplog):
    leading = Leader(Metric.of("f1"))
    leading.among([{"accuracy": 1.0, "loss": 0.5}] * 3)
    leading.among([{"accuracy": 1.0, "loss": 0.5}] * 3)
    (said,) = caplog.messages
    assert said.startswith("Too few clients have held-out examples of two classes to measure f1:")
