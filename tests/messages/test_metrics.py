"""Figures that cannot be true do not become everyone's."""

import pytest

from cflower.messages.metrics import Range, counted, mean_over_clients
from cflower.messages.replies import ClientMetrics


def kept(name, *values):
    told = [ClientMetrics({name: value}, 1) for value in values]
    plausible = Range.of(told)
    return [plausible.sifted(one.metrics).get(name) for one in told]


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
def test_what_is_out_of_range_is_left_out(name, values, left):
    assert tuple(kept(name, *values)) == left


def test_a_large_client_counts_for_more_but_not_for_all():
    assert counted([100, 200, 300]).tolist() == [100, 200, 300]
    assert counted([100] * 9 + [1000])[-1] == 300
    assert counted([100] * 9 + [100_000])[-1] == 300
    assert counted([100] * 9 + [100_001])[-1] == 100
    assert counted([1, 1e12]).tolist() == [1, 1e12]
    assert counted([]).tolist() == []


def test_the_mean_of_usual_clients_is_that_of_all_examples():
    told = [ClientMetrics({"loss": float(i)}, i) for i in (1, 2, 3)]
    assert mean_over_clients(told)["loss"] == pytest.approx(14 / 6)
