import subprocess
import sys
import time

import pytest

from cflower.deployment.federation import Federation
from cflower.deployment.processes import Process, descendants, started
from tests.command import error_of


def test_without_nginx_nothing_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr("cflower.deployment.proxy.shutil.which", lambda name, path: None)
    sentence = error_of("federation", "up", "--dir", tmp_path / "federation")
    assert "nginx is not installed: install it" in sentence
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
def test_the_next_steps_suit_the_nodes_and_the_installation(tmp_path, monkeypatch, nodes, alone):
    federation = Federation(tmp_path)
    federation.settings["ports"] = {"superlink": 1, "proxy": 2}
    federation.settings["nodes"] = {f"site-{i}": {"data": ""} for i in range(nodes)}
    assert ("min-cluster-size=1" in federation.next_steps()) is alone
    assert "CLONE" not in federation.next_steps()
    monkeypatch.setattr("cflower.deployment.federation.PROJECT", tmp_path)
    assert "run CLONE federation" in federation.next_steps()
    assert "CLONE: a clone of cflower" in federation.next_steps()
