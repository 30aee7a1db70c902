"""The processes of a federation on one machine: started to outlive this one, ended by their ids."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cflower.errors import FederationError

BIN = Path(sys.executable).parent


def environment(folder: Path) -> dict[str, str]:
    """Of every process of this federation: a Flower home and a cache of its own."""
    return os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(folder / "flwr-home"),
        "HF_HOME": str(folder / "hf-home"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run(*command: object, folder: Path, check: bool = True) -> str:
    """What a command printed; it runs in the federation's folder."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if check and done.returncode:
        raise FederationError(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


class Process:
    """A process that outlives this one, known by its id and its start in ``<name>.pid``.

    Parameters
    ----------
    folder : Path
        The federation's.
    name : str
        Also of its log, ``logs/<name>.log``.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self._folder = name, folder
        self._file = folder / "pids" / f"{name}.pid"
        self.log = folder / "logs" / f"{name}.log"
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """Its id while it lives; another process that got the same id later does not count."""
        try:
            pid, began = self._file.read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if started(int(pid)) == began else None

    def start(self, command: Sequence[object]) -> None:
        """Start it with a log of its own, in a session of its own."""
        for path in (self._file, self.log):
            path.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            self._log_start = log.tell()
            process = subprocess.Popen(
                [str(word) for word in command],
                cwd=self._folder,
                env=environment(self._folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._file.write_text(f"{process.pid} {started(process.pid)}\n")
        process.returncode = 0  # it outlives this one, so nobody waits for it

    def said(self, text: str) -> bool:
        """Whether it lives and its log says this since it was last started here."""
        if self.pid is None:
            return False
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return text.encode() in log.read()

    def end(self, patience: float = 20.0) -> bool:
        """End it and what it started, politely, then not; whether it had been alive."""
        pid = self.pid
        if pid is not None:
            family = [pid, *descendants(pid)]
            known = {member: started(member) for member in family}
            send(pid, signal.SIGTERM)
            deadline = time.monotonic() + patience
            while self.pid is not None and time.monotonic() < deadline:
                time.sleep(0.1)
            for member in family:
                while known[member] and started(member) == known[member]:
                    send(member, signal.SIGKILL)
                    time.sleep(0.02)
        self._file.unlink(missing_ok=True)
        return pid is not None


def send(pid: int, number: int) -> None:
    """Signal one process; one that is gone already is fine."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def ps(*columns: str) -> list[list[str]]:
    """Rows of ``ps`` over all processes, without zombies."""
    command = ["ps", "-A", "-o", ",".join(f"{column}=" for column in ("stat", *columns))]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split(None, len(columns))[1:] for line in lines if not line.startswith("Z")]


def started(pid: int) -> str:
    """When a process started, in one word; empty if there is none."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        return "" if fields[0] == "Z" else fields[19]
    rows = [began for found, began in ps("pid", "lstart") if int(found) == pid]
    return "".join(rows[0].split()) if rows else ""


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    children: dict[int, list[int]] = {}
    for child, parent in ps("pid", "ppid"):
        children.setdefault(int(parent), []).append(int(child))
    found = list(children.get(pid, []))
    for member in found:
        found += children.get(member, [])
    return found
