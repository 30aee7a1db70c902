from contextlib import ExitStack

import pytest

from cflower.runs.report import write_report
from tests.runs.chromium import CHROMIUM, Visit
from tests.runs.folders import made_up_run


@pytest.fixture(scope="session")
def made_up(tmp_path_factory):
    """A finished run with one split, refused splits and a bad reply; not to be written to."""
    return made_up_run(tmp_path_factory.mktemp("runs") / "made-up")


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens the report of a run, or of a made-up one; its page is closed after the test."""
    with ExitStack() as visits:

        def visit(run=None, width=1280, **keys):
            report = write_report(run or made_up_run(tmp_path / "run", **keys))
            return visits.enter_context(Visit(browser, report.as_uri(), width=width))

        yield visit
