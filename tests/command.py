"""The command `cflower` in this process: a new one takes seconds to import PyTorch."""

import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import NamedTuple

import pytest

from cflower.cli import main


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def cflower(*arguments: object) -> Done:
    """Start the command's entry point with these arguments."""
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
