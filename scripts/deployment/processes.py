"""Processes that outlive this one, and are ended by their ids."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

BIN = Path(sys.executable).parent


def environment(folder: Path) -> dict[str, str]:
    """Environment of a federation's processes: with its own Flower home and cache."""
    return os.environ | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(folder / "flwr-home"),
        "HF_HOME": str(folder / "hf-home"),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def output_of(*command: object, folder: Path | None = None) -> str:
    """The output of a command, whatever its exit status; in a federation's folder if given."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment(folder) if folder else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


class Process:
    """A process that outlives this one, known by its id and start time in ``pids/<name>.pid``.

    Its output is in ``logs/<name>.log`` of the federation's folder.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self._folder = name, folder
        self._file = folder / "pids" / f"{name}.pid"
        self.log = folder / "logs" / f"{name}.log"

    @property
    def pid(self) -> int | None:
        """Its id while it is running; None also if another process has got the id since."""
        try:
            pid, start = self._file.read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if started(int(pid)) == start else None

    def start(self, command: Sequence[object]) -> None:
        """Start it in its own session with a new log, unless it is running."""
        if self.pid is not None:
            return
        for path in (self._file, self.log):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        with self.log.open("a") as log:
            process = subprocess.Popen(
                list(map(str, command)),
                cwd=self._folder,
                env=environment(self._folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._file.write_text(f"{process.pid} {started(process.pid)}\n")
        process.returncode = 0  # it outlives this process, which does not wait for it

    def has_logged(self, text: str) -> bool:
        """Whether it has written this to its log since it was last started."""
        return text in self.log.read_text(errors="replace")

    def end(self, patience: float = 20.0) -> bool:
        """Terminate it, then kill what is left of it and its descendants.

        Returns whether it was running.
        """
        pid = self.pid
        if pid is None:
            return False
        family = {member: started(member) for member in (pid, *descendants(pid))}
        send(pid, signal.SIGTERM)
        deadline = time.monotonic() + patience
        while self.pid is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        for member, start in family.items():
            while start and started(member) == start:
                send(member, signal.SIGKILL)
                time.sleep(0.02)
        self._file.unlink(missing_ok=True)
        return True


def send(pid: int, number: int) -> None:
    """Signal a process, unless it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def started(pid: int) -> str:
    """Start time of a process in one word; "" if it is not running."""
    if not Path("/proc/self/stat").exists():
        return output_of("ps", "-o", "lstart=", "-p", pid).strip().replace(" ", "")
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] == "Z" else fields[19]


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    children = map(int, output_of("pgrep", "-P", pid).split())
    return [member for child in children for member in (child, *descendants(child))]
