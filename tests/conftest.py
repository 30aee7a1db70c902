"""For all tests: the same examples every time, no assertion on the time they take; a SuperLink."""

import os
import socket
import subprocess
import time
from logging import INFO, getLogger

import pytest
from hypothesis import settings

from tests.command import BIN, ENVIRONMENT

settings.register_profile("cflower", deadline=None, derandomize=True)
settings.load_profile("cflower")


@pytest.fixture(autouse=True)
def flower_logs_as_usual():
    """Commands quieten Flower's log for their process, which here is that of all tests."""
    logger = getLogger("flwr")
    logger.setLevel(INFO)
    logger.filters.clear()


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk():
    """Files reach the disk late: a test need not survive a power cut, and waiting takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session")
def flwr(tmp_path_factory):
    """The environment of a SuperLink that is ours alone, as long as the tests run."""
    home = tmp_path_factory.mktemp("flwr-home")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "test"\n\n[superlink.test]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    environment = ENVIRONMENT | {
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    log = (home / "superlink.log").open("w")
    command = [BIN / "flower-superlink", "--insecure", "--simulation"]
    command += ["--host", "127.0.0.1", "--port", port]
    superlink = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=log)
    try:
        wait_for_port(int(port), superlink)
        yield environment
    finally:
        superlink.terminate()
        superlink.wait(30)
        log.close()


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise AssertionError(f"the SuperLink did not open port {port}")
