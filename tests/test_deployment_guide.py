"""Every command of docs/guide/deployment.md, in its order, on this machine."""

import json
import re
import shlex
import shutil
import signal
import subprocess
from functools import partial

import pytest
from deployment.materials import make_data
from deployment.processes import accepts, free_port
from deployment.proxy import proxy_command, site

from tests.command import ENVIRONMENT, PROJECT, until
from tests.deployment.nginx import needs_nginx

GUIDE = PROJECT / "docs" / "guide" / "deployment.md"
PROXY = GUIDE.parent / "nginx" / "cflower.conf"
SITES = ("site-a", "site-b")


def blocks(kind):
    """The guide's fenced blocks of one kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


def words(command):
    return shlex.split(command.replace("\\\n", " "))


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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_the_units_are_closed():
    units = sorted((PROJECT / "docs" / "guide" / "systemd").iterdir())
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20"]
    done = subprocess.run([*command, *units], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr  # 2.0 of 10, 10 being open


def test_the_guide_has_the_proxy_that_a_federation_starts():
    assert PROXY.read_text() == site("9443", "127.0.0.1:8000", "/etc/cflower")


class Machine:
    """All machines of the guide in one folder, with names and ports of its own."""

    def __init__(self, folder):
        self.folder, self.processes = folder, list[subprocess.Popen[bytes]]()
        self.runs = folder / "home" / "cflower-runs"
        for name in ("etc", "var", "home"):
            (folder / name).mkdir(parents=True)
        self.environment = ENVIRONMENT | {"HOME": str(folder / "home")}
        self.environment.pop("FLWR_HOME", None)
        superlink = free_port()
        self.names = {
            "superlink.example.com": "localhost",
            "listen 9443": "listen 127.0.0.1:9443",
            "9443": str(free_port()),
            "--port 8000": f"--port {superlink}",
            "127.0.0.1:8000": f"127.0.0.1:{superlink}",
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
        self.start_words(words(command))

    def start_words(self, command):
        with (self.folder / "log").open("a") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log
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
@needs_nginx
def test_every_command_of_the_guide_works_in_its_order(machine):
    for number, name in enumerate(SITES, start=1):
        make_data(machine.folder / "var" / name, number)
    (entry,) = blocks("toml")
    (machine.folder / "home" / ".flwr").mkdir()
    (machine.folder / "home" / ".flwr" / "config.toml").write_text(machine.here(entry))
    done, run_id, printed = [], "", ""
    for block in blocks("bash"):
        command = machine.here(block, RUN_ID=run_id)
        if block.startswith(("ssh ", "ray ")):
            continue  # all machines are this one, and other tests use Ray
        if "site-a" in block:  # once for every client
            for name in SITES:
                theirs = {"site-a": name, "9444": str(free_port())}
                data = {f"{machine.folder}/var/data": f"{machine.folder}/var/{name}"}
                act = machine.start if block.startswith("flower-") else machine.run
                act(machine.here(command, **theirs, **data))
        elif block.startswith("flower-superlink"):
            machine.start(command)
            until(partial(accepts, int(machine.names["--port 8000"].split()[1])), 180, machine.log)
        elif block.startswith("nginx"):
            proxy = machine.here(PROXY.read_text())
            machine.start_words(proxy_command(machine.folder / "nginx", proxy))
            until(partial(accepts, int(machine.names["9443"])), 180, machine.log)
        elif block.startswith("curl"):
            assert "403 Forbidden" in machine.run(command)
        elif block.startswith("flwr supernode ls"):
            until(partial(all_online, machine, command), 300, machine.log)
        elif "resume=" in block:
            (folder,) = machine.runs.glob("2*")
            command = command.replace("RUN_FOLDER", folder.name[:-2])
            printed = machine.run(command)
        else:
            machine.run(command)
        if block.startswith("flwr run") and not run_id:
            until(lambda: bool(list(machine.runs.glob("2*/rounds.jsonl"))), 600, machine.log)
            listed = json.loads(machine.run("flwr ls federation --format json"))
            run_id = listed["runs"][0]["run-id"]
        done.append(block.split("\n")[0])
    assert len(done) == len(blocks("bash")) - 2
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
