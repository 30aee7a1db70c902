"""Methods whose clients keep something between rounds, on a SuperLink with three SuperNodes."""

import pytest
from deployment.federation import NAME, PROJECT, Federation
from deployment.materials import CLASSES

from cflower.runs.record import RunRecord


@pytest.mark.slow
def test_what_clients_keep_between_rounds_is_there_in_a_deployment_too(tmp_path):
    here, found = Federation(tmp_path / "federation"), {}
    keys = (
        "min-available-nodes=3 num-server-rounds=3 model='linear' seed=1 trial-rounds=0 "
        f"personal=false weighting='uniform' max-influence=0.0 class-names='{','.join(CLASSES)}'"
    )
    try:
        here.up(3, [], insecure=True)
        for method in ("federated", "scaffold", "ditto"):
            runs = tmp_path / method
            config = f"{keys} method='{method}' output-dir='{runs}'"
            log = here.flwr("run", str(PROJECT), NAME, "--stream", "-c", config)
            assert runs.is_dir(), log
            (folder,) = runs.iterdir()
            summary = RunRecord(folder).summary
            assert summary.finished, log
            assert list(summary.clients) == ["site-1", "site-2", "site-3"]
            assert {line.trainings for line in summary.clients.values()} == {3}
            assert not summary.problems, log
            found[method] = summary.metrics
    finally:
        here.down()
    # Every second site has its digits upside down, so that a model of its own serves it better.
    assert found["ditto"]["accuracy"] > found["federated"]["accuracy"]
    # Without control variates SCAFFOLD would be FedAvg here.
    assert found["scaffold"]["loss"] != found["federated"]["loss"]
