"""As many clusters as a user asks for."""

import pytest

from cflower.auto.chosen import ChosenNumber
from cflower.config import RunConfig
from cflower.errors import ConfigError
from cflower.server_app import criterion_of
from tests.command import error_of
from tests.strategy.quadratics import Quadratics, clusters_of, run

GROUPS = (0, 0, 0, 1, 1, 1, 2, 2, 2)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_a_run_ends_with_the_number_of_clusters_that_was_asked_for(number):
    clients = Quadratics(GROUPS)
    strategy, _, reports = run(clients, criterion=ChosenNumber(clusters=number), metric="loss")
    found = clusters_of(strategy)
    assert len(found) == number
    splits = [d for report in reports for d in report.decisions if d.outcome == "split"]
    assert [split.reason for split in splits] == [f"{number} clusters were asked for"]
    if number == 3:
        assert found == clients.planted
    if number == 2:  # two of the three groups together
        assert all(any(group <= side for side in found) for group in clients.planted)


def test_equal_clients_are_split_all_the_same():
    strategy, _, _ = run(
        Quadratics((0,) * 6), 40, criterion=ChosenNumber(clusters=2), metric="loss"
    )
    assert len(clusters_of(strategy)) == 2


@pytest.mark.parametrize("number", [3, 9])
def test_fewer_clients_than_clusters_stay_together(number):
    strategy, _, _ = run(Quadratics((0, 1)), criterion=ChosenNumber(clusters=number), metric="loss")
    assert len(clusters_of(strategy)) == 1


def test_the_run_config_takes_a_number_for_auto_only():
    config = RunConfig.read({"clusters": 4, "heard-share": 0.5})
    assert criterion_of(config) == ChosenNumber(clusters=4, heard_share=0.5)
    for wrong in ({"clusters": 1}, {"clusters": 4, "split-criterion": "norms"}):
        with pytest.raises(ConfigError, match="2 or more with split-criterion='auto'"):
            RunConfig.read(wrong)
    said = error_of("simulate", "-c", "clusters=1")
    assert "Got clusters=1" in said
