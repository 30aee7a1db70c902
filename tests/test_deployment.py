"""A real federation on this machine: TLS, a database, SuperNodes with keys and their own data."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from deployment.processes import free_port

from tests.command import BIN, ENVIRONMENT, PROJECT, until
from tests.deployment.nginx import needs_nginx

ROUNDS = 10

pytestmark = [pytest.mark.slow, needs_nginx]


class Site:
    """The folder of a federation."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = ENVIRONMENT | {"FLWR_HOME": str(folder / "flwr-home")}

    def federation(self, command, *more):
        script = PROJECT / "scripts" / "federation.py"
        words = [sys.executable, script, command, "--dir", self.folder, *more]
        done = subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def shell(self, command):
        done = subprocess.run(
            command, shell=True, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def flwr(self, words, key):
        return json.loads(self.shell(f"{BIN}/flwr {words} federation --format json"))[key]

    def online(self):
        return sum(node["status"] == "online" for node in self.flwr("supernode ls", "nodes"))

    def pid(self, name):
        return int((self.folder / "pids" / f"{name}.pid").read_text().split()[0])

    def log(self, name):
        return (self.folder / "logs" / f"{name}.log").read_text()

    def lines(self):
        """All lines recorded so far: one for each round and cluster."""
        files = (self.folder / "runs").glob("*/rounds.jsonl")
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def superlink_log(self):
        return self.log("superlink")[-4000:]


@pytest.fixture
def site(tmp_path):
    here = Site(tmp_path / "federation")
    try:
        yield here
    finally:
        here.federation("down")


def alive(pid):
    """Whether a process lives; one that ended but was not waited for does not."""
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def trained(site, client, after):
    return any(line["round"] > after and client in line["heard"] for line in site.lines())


def test_nodes_with_their_own_data_are_clustered_leave_return_and_join(site):
    printed = site.federation("up")
    assert site.online() == 4
    assert (site.folder / "keys" / "site-1").stat().st_mode & 0o077 == 0
    assert re.search(r"superlink +process \d+", site.federation("status"))

    command = next(line for line in printed.splitlines() if " run " in line).strip()
    config = f"num-server-rounds={ROUNDS} round-timeout=180 output-dir='{site.folder / 'runs'}'"
    changed = command.replace("num-server-rounds=8", config).replace(" --stream", "")
    assert changed != command
    site.shell(changed)
    log = site.superlink_log
    until(lambda: any(line["decision"] == "split" for line in site.lines()), 900, log)

    # One is killed, a fifth joins, and two intruders try to.
    killed_in = site.lines()[-1]["round"] + 1
    os.kill(site.pid("site-2"), signal.SIGKILL)
    intruders = [start_intruder(site, "unregistered"), start_intruder(site, "wrong-ca")]
    try:
        site.federation("up", "--nodes", "5")
        assert site.online() == 5
        assert [intruder.wait(180) for intruder in intruders] == [1, 1]
    finally:
        for intruder in intruders:
            intruder.kill()
            intruder.wait()
    assert "Failed to activate" in (site.folder / "unregistered.log").read_text()
    assert "certificate verify failed" in (site.folder / "wrong-ca.log").read_text()

    def finished():
        (run,) = site.flwr("ls", "runs")
        return str(run["status"]).startswith("finished")

    # Flower's command line takes seconds of the processors that the clients train on.
    until(lambda: len({line["round"] for line in site.lines()}) == ROUNDS, 1200, log)
    until(finished, 400, log, pause=5.0)
    (run,) = site.flwr("ls", "runs")
    assert run["status"] == "finished:completed", site.log("superlink")
    (folder,) = (site.folder / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text())
    clusters = sorted(summary["clusters"].values())
    assert clusters == [["site-1", "site-3", "site-5"], ["site-2", "site-4"]]
    assert sorted(summary["clients"]) == [f"site-{number}" for number in range(1, 6)]
    assert trained(site, "site-2", killed_in), "the killed one did not train again"
    assert trained(site, "site-5", 0), "the new one did not train"
    models = {path.stem for path in (folder / "models").iterdir()}
    assert models == {"0", *summary["clusters"]}
    assert summary["metrics"]["accuracy"] > summary["metrics"]["fl_accuracy"]

    pids = [site.pid(name) for name in ("superlink", "proxy", *(f"site-{n}" for n in range(1, 6)))]
    assert all(map(alive, pids))
    site.federation("down")
    assert not any(map(alive, pids))


def start_intruder(site, name):
    """A SuperNode with an unregistered key, or one that trusts another authority."""
    key, authority = site.folder / name, site.folder / "certificates" / "ca.crt"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", key], check=True)
    if name == "wrong-ca":
        key, authority = site.folder / "keys" / "site-2", site.folder / "other.crt"
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command = ["openssl", "req", "-x509", *new, "-subj", "/CN=other", "-keyout", "other.key"]
        subprocess.run([*command, "-out", authority], cwd=site.folder, check=True)
    settings = json.loads((site.folder / "federation.json").read_text())
    command = [BIN / "flower-supernode", "--superlink", f"127.0.0.1:{settings['ports']['proxy']}"]
    command += ["--root-certificates", authority, "--auth-supernode-private-key", key]
    command += ["--host", "127.0.0.1", "--port", str(free_port())]
    command += ["--node-config", f'client-id="{name}"']
    with (site.folder / f"{name}.log").open("w") as log:
        return subprocess.Popen(command, env=site.environment, stdout=log, stderr=log)
