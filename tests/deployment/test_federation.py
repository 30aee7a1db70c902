import subprocess
import sys
import time

import pytest
from deployment.federation import Federation
from deployment.processes import Process, descendants, started

from cflower.errors import FederationError
from tests.command import script


def test_without_nginx_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr("deployment.proxy.shutil.which", lambda name, path: None)
    with pytest.raises(FederationError, match="nginx is not installed: install it"):
        Federation(tmp_path / "federation").up(4, [], insecure=False)
    assert not (tmp_path / "federation").exists()


def test_a_process_is_ended_with_what_it_started_and_nothing_else_is(tmp_path):
    process = Process(tmp_path, "sleeper")
    assert process.pid is None
    assert not process.end()
    code = "import subprocess as s, time; s.Popen(['sleep', '60']); print('up', flush=True); "
    process.start([sys.executable, "-c", code + "time.sleep(60)"])
    while "up" not in process.log.read_text():
        time.sleep(0.05)
    pid = process.pid
    assert pid is not None
    family = [pid, *descendants(pid)]
    assert len(family) == 2
    assert process.end()
    assert not any(started(member) for member in family)

    # its id was given to another process meanwhile
    other = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / "pids" / "sleeper.pid").write_text(f"{other.pid} before\n")
        assert not process.end()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize(("nodes", "alone"), [(3, True), (4, False)])
def test_the_next_steps_suit_the_number_of_nodes(tmp_path, nodes, alone):
    federation = Federation(tmp_path)
    federation.settings["ports"] = {"superlink": 1, "proxy": 2}
    federation.settings["nodes"] = {f"site-{i}": {"data": ""} for i in range(nodes)}
    assert ("min-cluster-size=1" in federation.next_steps()) is alone


def test_the_script_lists_its_commands():
    assert {"up", "status", "down"} <= set(script("federation.py", "--help").split())
