"""The command `cflower` in this process: a new one takes seconds to import PyTorch."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
ENVIRONMENT = os.environ | {
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}
"""The environment for Flower's commands."""


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def cflower(*arguments: object) -> Done:
    """Start the command's entry point with these arguments."""
    from cflower.cli import main  # here, as conftest and new processes should not wait for Flower

    out, err, before = StringIO(), StringIO(), sys.argv
    sys.argv = ["cflower", *map(str, arguments)]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    code = ended.value.code
    status = code if isinstance(code, int) else int(code is not None)
    return Done(status, out.getvalue(), err.getvalue())


def output_of(*arguments: object) -> str:
    """The standard output of a command that must succeed."""
    done = cflower(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def error_of(*arguments: object) -> str:
    """The one sentence that a refused command prints."""
    status, out, err = cflower(*arguments)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("Error: ")
    return err


def simulated(out: Path, config: str, *options: object) -> Path:
    """The run folder of a `cflower simulate`, the only one in ``out``."""
    output_of("simulate", "-c", config, "--out", out, *options)
    (run,) = out.iterdir()
    return run


def in_new_process(code: str, *arguments: str, cwd: Path = PROJECT) -> str:
    """The output of Python code in a process of its own."""
    return _printed("-c", code, *arguments, cwd=cwd)


def script(name: str, *arguments: object) -> str:
    """The output of one of `scripts/` in a process of its own."""
    return _printed(PROJECT / "scripts" / name, *arguments, cwd=PROJECT)


def _printed(*arguments: object, cwd: Path) -> str:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def started_simulation(out: Path, config: str) -> "subprocess.Popen[str]":
    """A `cflower simulate` in a process of its own."""
    code = "from cflower.cli import main; main()"
    command = [sys.executable, "-c", code, "simulate", "-c", config, "--out", str(out)]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, text=True, **output)


def until(
    what: Callable[[], bool], seconds: float, log: Callable[[], str], pause: float = 1.0
) -> None:
    """Wait for something; the log is printed if it does not come in time."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"waited {seconds} s\n{log()}"
        time.sleep(pause)
