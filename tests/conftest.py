"""For all tests: the same examples every time, no assertion on the time they take; a SuperLink."""

import gc
import os
import subprocess
from logging import INFO, getLogger

import pytest
from deployment.processes import accepts, free_port
from hypothesis import settings

from tests.command import BIN, ENVIRONMENT, PROJECT, until

# Loading PyTorch, Flower and the tests makes objects that live as long as the process. Searching
# them for garbage takes a fifth of the time.
gc.disable()

settings.register_profile("cflower", deadline=None, derandomize=True)
settings.load_profile("cflower")


def pytest_collection_modifyitems(items):
    """Files of slow tests come first, so that no process waits long for another one at the end."""
    quick = {item.path for item in items if not item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path in quick)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def flower_as_usual():
    """Flower as in a new process: commands quieten its log, and a Message asks for its task."""
    from flwr.supercore.task_identity import TaskIdentity

    logger = getLogger("flwr")
    logger.setLevel(INFO)
    logger.filters.clear()
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


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
    port = str(free_port())
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "test"\n\n[superlink.test]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    environment = ENVIRONMENT | {
        "FLWR_HOME": str(home),
        "PYTHONPATH": str(PROJECT),  # for apps with clients from `tests`
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    log = (home / "superlink.log").open("w")
    command = [BIN / "flower-superlink", "--insecure", "--simulation"]
    command += ["--host", "127.0.0.1", "--port", port]
    superlink = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=log)
    try:
        until(lambda: accepts(int(port)), 60, (home / "superlink.log").read_text, 0.2)
        yield environment
    finally:
        superlink.terminate()
        superlink.wait(30)
        log.close()
