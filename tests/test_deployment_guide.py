"""Every command of docs/deployment.md, in its order, on this machine."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from cflower.deployment.materials import make_data

PROJECT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
GUIDE = PROJECT / "docs" / "deployment.md"
SITES = ("site-a", "site-b")

sys.path.insert(0, str(PROJECT / "scripts"))


def blocks(kind: str) -> list[str]:
    """The guide's fenced blocks of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))


def free_port() -> int:
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
def test_the_units_start_what_the_guide_starts(unit: str, program: str) -> None:
    text = (PROJECT / "docs" / "systemd" / unit).read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^ExecStart=/opt/cflower/bin/(.*)$", text, re.MULTILINE)
    (told,) = [block for block in blocks("bash") if block.startswith(program)]
    assert words(command.replace("%i", "site-a")) == words(told)
    assert "Restart=always" in text


class Machine:
    """All machines of the guide in one folder, with names and ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        for name in ("etc", "var", "home"):
            (folder / name).mkdir(parents=True)
        self.environment = {
            name: value for name, value in os.environ.items() if name != "FLWR_HOME"
        } | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        self.names = {
            "--host 0.0.0.0": "--host 127.0.0.1",
            "superlink.example.com": "localhost",
            "9443": str(free_port()),
            "/etc/cflower": str(folder / "etc"),
            "/var/lib/cflower": str(folder / "var"),
            "~/": f"{folder}/home/",
            "num-server-rounds=30": "num-server-rounds=3",
        }

    def here(self, text: str, **more: str) -> str:
        """The guide's text with this machine's names in place of the guide's."""
        for old, new in (self.names | more).items():
            text = text.replace(old, new)
        return text

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-eu", "-c", command],
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}{self.log()}"
        return done.stdout

    def start(self, command: str) -> None:
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                words(command), cwd=self.folder, env=self.environment, stdout=log, stderr=log
            )
        self.processes.append(process)

    def log(self) -> str:
        log = self.folder / "log"
        return log.read_text()[-4000:] if log.exists() else ""

    def end(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def until(self, what: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, f"waited {seconds} s\n{self.log()}"
            time.sleep(1)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    here = Machine(tmp_path)
    try:
        yield here
    finally:
        here.end()


@pytest.mark.slow
def test_every_command_of_the_guide_works_in_its_order(machine: Machine) -> None:
    for number, name in enumerate(SITES, start=1):
        make_data(machine.folder / "var" / name, number)
    (entry,) = blocks("toml")
    (machine.folder / "home" / ".flwr").mkdir()
    (machine.folder / "home" / ".flwr" / "config.toml").write_text(machine.here(entry))
    done, run_id, said = [], "", ""
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
            machine.until(lambda: port_is_open(int(machine.names["9443"])), 60)
        elif block.startswith("flwr supernode ls"):
            machine.until(partial(all_online, machine, command), 90)
        elif "resume=" in block:
            (folder,) = runs_of(machine)
            command = command.replace("RUN_FOLDER", folder.name[:-2])
            said = machine.run(command)
        else:
            machine.run(command)
        if block.startswith("flwr run") and not run_id:
            machine.until(lambda: any(path.exists() for path in rounds_of(machine)), 200)
            listed = json.loads(machine.run("flwr ls federation --format json"))
            run_id = listed["runs"][0]["run-id"]
        done.append(block.split("\n")[0])
    assert len(done) == len(blocks("bash")) - 1
    assert "Going on after round" in said
    (folder,) = runs_of(machine)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["finished"]
    assert sorted(summary["clients"]) == list(SITES)
    ended = json.loads(machine.run("flwr ls federation --format json"))["runs"]
    states = {run["status"] for run in ended}
    assert states == {"finished:stopped", "finished:completed"}


def all_online(machine: Machine, command: str) -> bool:
    return machine.run(command).count("online") >= len(SITES)


def runs_of(machine: Machine) -> list[Path]:
    return list((machine.folder / "home" / "cflower-runs").glob("2*"))


def rounds_of(machine: Machine) -> list[Path]:
    return [folder / "rounds.jsonl" for folder in runs_of(machine)]


def port_is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
