"""A real federation on this machine: TLS, a database, SuperNodes with keys and their own data."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
ROUNDS = 10

pytestmark = pytest.mark.slow


class Site:
    """What `cflower federation` keeps in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {
            "FLWR_HOME": str(folder / "flwr-home"),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def federation(self, command: str, *more: str) -> str:
        words = [BIN / "cflower", "federation", command, "--dir", str(self.folder), *more]
        done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def shell(self, command: str) -> str:
        done = subprocess.run(
            command, shell=True, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def flwr(self, words: str, key: str) -> list[dict[str, Any]]:
        return json.loads(self.shell(f"{BIN}/flwr {words} federation --format json"))[key]

    def online(self) -> int:
        return sum(node["status"] == "online" for node in self.flwr("supernode ls", "nodes"))

    def pid(self, name: str) -> int:
        return int((self.folder / "pids" / f"{name}.pid").read_text().split()[0])

    def log(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text()

    def lines(self) -> list[dict[str, Any]]:
        """What the run has recorded so far: one line a round and cluster."""
        found = list((self.folder / "runs").glob("*/rounds.jsonl"))
        return [json.loads(line) for line in found[0].read_text().splitlines()] if found else []


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    here = Site(tmp_path / "federation")
    try:
        yield here
    finally:
        here.federation("down")


def until(what: Callable[[], bool], seconds: float, site: Site, pause: float = 1.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"waited {seconds} s\n{site.log('superlink')[-4000:]}"
        time.sleep(pause)


def alive(pid: int) -> bool:
    """Whether a process lives; one that ended, and that nobody has asked after yet, does not."""
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def heard(site: Site, client: str, after: int) -> bool:
    return any(line["round"] > after and client in line["heard"] for line in site.lines())


def test_nodes_with_their_own_data_are_clustered_leave_return_and_join(site: Site) -> None:
    printed = site.federation("up")
    assert site.online() == 4
    assert re.search(r"superlink +process \d+", site.federation("status"))

    command = next(line for line in printed.splitlines() if " run " in line).strip()
    config = f"num-server-rounds={ROUNDS} round-timeout=90 output-dir='{site.folder / 'runs'}'"
    changed = command.replace("num-server-rounds=8", config).replace(" --stream", "")
    assert changed != command
    site.shell(changed)
    until(lambda: any(line["decision"] == "split" for line in site.lines()), 400, site)

    # one is killed, a fifth comes new, and those who have no business here try to get in
    killed_in = site.lines()[-1]["round"] + 1
    os.kill(site.pid("site-2"), signal.SIGKILL)
    intruders = [start_intruder(site, "unregistered"), start_intruder(site, "wrong-ca")]
    try:
        site.federation("up", "--nodes", "5")
        assert site.online() == 5
        assert [intruder.wait(60) for intruder in intruders] == [1, 1]
    finally:
        for intruder in intruders:
            intruder.kill()
            intruder.wait()
    said = [(site.folder / f"{name}.log").read_text() for name in ("unregistered", "wrong-ca")]
    assert "Failed to activate" in said[0]
    assert "certificate verify failed" in said[1]

    def finished() -> bool:
        (run,) = site.flwr("ls", "runs")
        return str(run["status"]).startswith("finished")

    # Flower's command line takes seconds of the processors that the clients train on.
    until(lambda: len({line["round"] for line in site.lines()}) == ROUNDS, 600, site)
    until(finished, 200, site, pause=5.0)
    (run,) = site.flwr("ls", "runs")
    assert run["status"] == "finished:completed", site.log("superlink")
    (folder,) = (site.folder / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    clusters = sorted(summary["clusters"].values())
    assert clusters == [["site-1", "site-3", "site-5"], ["site-2", "site-4"]]
    assert sorted(summary["clients"]) == [f"site-{number}" for number in range(1, 6)]
    assert heard(site, "site-2", killed_in), "the killed one did not train again"
    assert heard(site, "site-5", 0), "the new one did not train"
    models = {path.stem for path in (folder / "models").iterdir()}
    assert models == {"0", *summary["clusters"]}
    assert summary["metrics"]["accuracy"] > summary["metrics"]["fl_accuracy"]

    pids = [site.pid(name) for name in ("superlink", *(f"site-{n}" for n in range(1, 6)))]
    assert all(map(alive, pids))
    site.federation("down")
    assert not any(map(alive, pids))


def start_intruder(site: Site, name: str) -> "subprocess.Popen[bytes]":
    """A SuperNode with a key that nobody registered, or that trusts another authority."""
    key, authority = site.folder / name, site.folder / "certificates" / "ca.crt"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", key], check=True)
    if name == "wrong-ca":
        key, authority = site.folder / "keys" / "site-2", site.folder / "other.crt"
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command = ["openssl", "req", "-x509", *new, "-subj", "/CN=other", "-keyout", "other.key"]
        subprocess.run([*command, "-out", authority], cwd=site.folder, check=True)
    settings = json.loads((site.folder / "federation.json").read_text())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [BIN / "flower-supernode", "--superlink", f"127.0.0.1:{settings['port']}"]
    command += ["--root-certificates", authority, "--auth-supernode-private-key", key]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--node-config", f'client-id="{name}"']
    with (site.folder / f"{name}.log").open("w") as log:
        return subprocess.Popen(command, env=site.environment, stdout=log, stderr=log)
