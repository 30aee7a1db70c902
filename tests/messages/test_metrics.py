"""The direction and range of metrics, and means that no single client decides."""

import pytest

from cflower.messages.metrics import ClientMetrics, Metric, mean_over_clients, plausible


@pytest.mark.parametrize(
    "name",
    ["val_loss", "test-rmse", "perplexity", "mae", "wer", "cer", "valMAE", "eval/loss", "log loss"],
)
def test_the_words_of_a_name_make_lower_values_better(name):
    assert not Metric.of(name).higher_is_better
    assert Metric.of(name, True).higher_is_better
    assert Metric.of(name).best([0.1, 0.2]) == Metric.of(name).worst([0.1, 0.0]) == 0.1


@pytest.mark.parametrize(
    "name", ["answer_f1", "power", "lossless_ratio", "eval_acc", "accumulated_cost", "sauce_score"]
)
def test_parts_of_words_do_not_make_lower_values_better(name):
    assert Metric.of(name).higher_is_better


@pytest.mark.parametrize(
    ("name", "share"),
    [(name, True) for name in ("eval_acc", "answer_f1", "mean.iou", "Dice", "rocAUC")]
    + [(name, False) for name in ("accumulated_cost", "sauce_score", "power", "val_loss", "wer")],
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
    clients = [ClientMetrics({name: value}, 1) for value in values]
    assert tuple(one.metrics.get(name) for one in plausible(clients)) == left


def test_the_mean_of_similar_clients_is_weighted_by_examples():
    clients = [ClientMetrics({"loss": float(i)}, i) for i in (1, 2, 3)]
    assert mean_over_clients(clients)["loss"] == pytest.approx(14 / 6)
    clients = [ClientMetrics({"accuracy": 0.9}, 100)] * 9 + [ClientMetrics({"accuracy": 0}, 1e12)]
    assert mean_over_clients(clients)["accuracy"] == pytest.approx(0.9 * 9 / 12)
