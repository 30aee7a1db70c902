"""The documentation's site in a real browser: everyone can use it."""

import subprocess
import sys

import pytest

from tests.command import PROJECT
from tests.runs.chromium import IN_CHROMIUM
from tests.runs.test_report_browser import complaints

pytestmark = IN_CHROMIUM


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-q", "-b", "html", PROJECT / "docs", folder]
    subprocess.run(build, check=True, timeout=300)
    return folder.as_uri()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_axe_has_no_complaints_and_no_page_scrolls_sideways(browser, site, width, theme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    for name in ("index.html", "guide/tutorial.html", "evidence/peers.html"):
        page.goto(f"{site}/{name}")
        assert complaints(page) == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    page.close()


def test_the_search_finds_a_key(browser, site):
    page = browser.new_page()
    page.goto(f"{site}/search.html?q=heard-share")
    page.wait_for_selector("#search-results li a")
    assert "Keys of the run config" in page.locator("#search-results").inner_text()
    assert complaints(page) == []
    page.close()
