"""Three SuperNodes, a SuperLink, and an app of someone else whose FedAvg is observed."""

import re
import shutil

import pytest
from deployment.federation import NAME, Federation

from cflower.runs.record import RunRecord
from tests.command import PROJECT

OBSERVED = "Advised(FedAvg(min_available_nodes=3), metric='rmse', observers=[recorder])"


class Agencies(Federation):
    """SuperNodes with the node config of the example's three agencies."""

    def _supernode(self, name):
        *command, _ = super()._supernode(name)
        number = int(name.removeprefix("site-")) - 1
        config = f'client-id="{name}" partition-id={number} num-partitions=3'
        return [*command, config]


@pytest.mark.slow
def test_a_deployed_strategy_is_observed(tmp_path):
    app, here = tmp_path / "clustered-sklearn", Agencies(tmp_path / "federation")
    shutil.copytree(PROJECT / "examples" / "sklearn", app)
    server = app / "sklearnexample" / "server_app.py"
    text = server.read_text().replace("import ClusteredFL", "import Advised")
    text = "from flwr.serverapp.strategy import FedAvg\n" + text
    text, count = re.subn(r"ClusteredFL\(.*\)", OBSERVED, text)
    assert count == 1
    server.write_text(text)
    try:
        here.up(3, [], insecure=True)
        config = f"num-server-rounds=4 output-dir='{tmp_path / 'runs'}'"
        log = here.flwr("run", str(app), NAME, "--stream", "-c", config)
        (folder,) = (tmp_path / "runs").iterdir()
        run = RunRecord(folder)
        assert run.summary.finished, log
        assert list(run.summary.clients) == ["site-1", "site-2", "site-3"]
        assert "Would separate models help?" in run.summary.not_split
        assert re.search(r"served \d of 3 clients better", run.summary.not_split), log
        assert (folder / "report.html").is_file()
    finally:
        here.down()
