from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runs.chromium import CHROMIUM
from tests.runs.folders import made_up_run


@pytest.fixture(scope="session")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with one split, refused splits and a bad reply; not to be written to."""
    return made_up_run(tmp_path_factory.mktemp("runs") / "made-up")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()
