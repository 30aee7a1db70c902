from pathlib import Path

import pytest

from tests.runs.folders import made_up_run


@pytest.fixture(scope="session")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with one split, refused splits and a bad reply; not to be written to."""
    return made_up_run(tmp_path_factory.mktemp("runs") / "made-up")
