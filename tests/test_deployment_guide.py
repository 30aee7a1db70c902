"""Every command of docs/guide/deployment.md, in its order, on this machine."""

import json
import re
import shlex
import signal
import socket
import subprocess
import time
from functools import partial

import pytest

from cflower.deployment.materials import make_data
from tests.command import ENVIRONMENT, PROJECT

GUIDE = PROJECT / "docs" / "guide" / "deployment.md"
SITES = ("site-a", "site-b")


def blocks(kind):
    """The guide's fenced blocks of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def words(command):
    return shlex.split(command.replace("\\\n", " "))


def until(what, seconds, log, pause=1.0):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"waited {seconds} s\n{log()}"
        time.sleep(pause)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("unit", "program"),
    [
        ("cflower-superlink.service", "flower-superlink"),
        ("cflower-supernode@.service", "flower-supernode"),
    ],
)
def test_the_units_start_what_the_guide_starts(unit, program):
    text = (PROJECT / "docs" / "guide" / "systemd" / unit).read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^ExecStart=/opt/cflower/bin/(.*)$", text, re.MULTILINE)
    (in_guide,) = [block for block in blocks("bash") if block.startswith(program)]
    assert words(command.replace("%i", "site-a")) == words(in_guide)
    assert "Restart=always" in text


class Machine:
    """All machines of the guide in one folder, with names and ports of its own."""

    def __init__(self, folder):
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.runs = folder / "home" / "cflower-runs"
        for name in ("etc", "var", "home"):
            (folder / name).mkdir(parents=True)
        self.environment = ENVIRONMENT | {"HOME": str(folder / "home")}
        self.environment.pop("FLWR_HOME", None)
        self.names = {
            "--host 0.0.0.0": "--host 127.0.0.1",
            "superlink.example.com": "localhost",
            "9443": str(free_port()),
            "/etc/cflower": str(folder / "etc"),
            "/var/lib/cflower": str(folder / "var"),
            "~/": f"{folder}/home/",
            "num-server-rounds=30": "num-server-rounds=3",
        }

    def here(self, text, **more):
        """The guide's text with this machine's names in place of the guide's."""
        for old, new in (self.names | more).items():
            text = text.replace(old, new)
        return text

    def run(self, command):
        ways = {"cwd": PROJECT, "env": self.environment, "capture_output": True, "text": True}
        done = subprocess.run(["bash", "-eu", "-c", command], **ways, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}{self.log()}"
        return done.stdout

    def start(self, command):
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                words(command), cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
        self.processes.append(process)

    def log(self):
        log = self.folder / "log"
        return log.read_text()[-4000:] if log.exists() else ""

    def end(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def machine(tmp_path):
    here = Machine(tmp_path)
    try:
        yield here
    finally:
        here.end()


@pytest.mark.slow
def test_every_command_of_the_guide_works_in_its_order(machine):
    for number, name in enumerate(SITES, start=1):
        make_data(machine.folder / "var" / name, number)
    (entry,) = blocks("toml")
    (machine.folder / "home" / ".flwr").mkdir()
    (machine.folder / "home" / ".flwr" / "config.toml").write_text(machine.here(entry))
    done, run_id, printed = [], "", ""
    for block in blocks("bash"):
        command = machine.here(block, RUN_ID=run_id)
        if "cflower federation" in block:
            continue  # test_deployment.py runs it
        if "site-a" in block:  # once for every client
            for name in SITES:
                theirs = {"site-a": name, "9444": str(free_port())}
                data = {f"{machine.folder}/var/data": f"{machine.folder}/var/{name}"}
                act = machine.start if block.startswith("flower-") else machine.run
                act(machine.here(command, **theirs, **data))
        elif block.startswith("flower-superlink"):
            machine.start(command)
            until(lambda: port_is_open(int(machine.names["9443"])), 60, machine.log)
        elif block.startswith("flwr supernode ls"):
            until(partial(all_online, machine, command), 90, machine.log)
        elif "resume=" in block:
            (folder,) = machine.runs.glob("2*")
            command = command.replace("RUN_FOLDER", folder.name[:-2])
            printed = machine.run(command)
        else:
            machine.run(command)
        if block.startswith("flwr run") and not run_id:
            until(lambda: bool(list(machine.runs.glob("2*/rounds.jsonl"))), 200, machine.log)
            listed = json.loads(machine.run("flwr ls federation --format json"))
            run_id = listed["runs"][0]["run-id"]
        done.append(block.split("\n")[0])
    assert len(done) == len(blocks("bash")) - 1
    assert "Going on after round" in printed
    (folder,) = machine.runs.glob("2*")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["finished"]
    assert sorted(summary["clients"]) == list(SITES)
    ended = json.loads(machine.run("flwr ls federation --format json"))["runs"]
    states = {run["status"] for run in ended}
    assert states == {"finished:stopped", "finished:completed"}


def all_online(machine, command):
    return machine.run(command).count("online") >= len(SITES)


def port_is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
