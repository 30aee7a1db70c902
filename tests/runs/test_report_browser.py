"""The report in a real browser: no errors, no network, everything answers, everyone can use it."""

import shutil
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cflower.runs.report import write_report
from cflower.runs.watch import ReportServer
from tests.runs.folders import made_up_run

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("playwright") is None, reason="playwright is not installed"),
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed"),
    pytest.mark.filterwarnings("ignore"),
]
HOSTILE = "<img src=x onerror=alert({})><b>bold</b>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = made_up_run(tmp_path_factory.mktemp("runs") / "run", clients=30)
    return write_report(run).as_uri()


class Visit:
    """A page, with everything it complained of and asked for."""

    def __init__(self, browser: Any, url: str, *, width: int = 1280, theme: str = "light") -> None:
        self.page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
        )
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.goto(url)
        self.page.wait_for_selector("#norms svg")

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.inner_text())

    def slide(self, selector: str, value: float) -> None:
        self.page.locator(selector).evaluate(
            "(e, v) => { e.value = v; e.dispatchEvent(new Event('input')) }", value
        )


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_it_loads_alone_and_fits(browser: Any, report: str, width: int, theme: str) -> None:
    with Visit(browser, report, width=width, theme=theme) as visit:
        assert visit.complaints == []
        asked = [url for url in visit.requests if not url.startswith("data:")]
        assert asked == [report]
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        background = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = sum(int(c) for c in background[4:-1].split(",")) < 3 * 128
        assert dark == (theme == "dark")
        wide = visit.page.evaluate(
            "[...document.querySelectorAll('main svg, main canvas, main section')]"
            ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).length"
        )
        assert wide == 0


def test_the_button_changes_the_theme(browser: Any, report: str) -> None:
    with Visit(browser, report) as visit:
        color = "getComputedStyle(document.body).backgroundColor"
        before = visit.page.evaluate(color)
        visit.page.click("#theme")
        assert visit.page.evaluate(color) != before
        assert visit.page.get_attribute("#theme", "aria-pressed") == "true"


def test_sliders_tell_what_other_thresholds_would_have_done(browser: Any, report: str) -> None:
    with Visit(browser, report) as visit:
        assert "would have split in round 6" in visit.text("#answers li")
        visit.slide("#eps1", 0.1)
        assert "would not have split up to round 6" in visit.text("#answers li")
        visit.slide("#eps1", 2.9)
        assert "norms would have allowed a split in round 2" in visit.text("#answers li")
        visit.page.focus("#eps2")
        before = visit.page.input_value("#eps2")
        visit.page.keyboard.press("ArrowRight")
        assert float(visit.page.input_value("#eps2")) > float(before)
        visit.page.click("text=As in the config")
        assert float(visit.page.input_value("#eps1")) == pytest.approx(0.9, abs=0.01)


def test_the_matrix_slider(browser: Any, report: str) -> None:
    with Visit(browser, report) as visit:
        assert "round 6, cluster 0: split" in visit.text("#similarity output")
        visit.slide("#matrix", 0)
        assert "round 4, cluster 0: sides not apart enough" in visit.text("#similarity output")
        visit.page.locator("#similarity canvas").hover(position={"x": 5, "y": 5})
        assert "client-0\nclient-0\ncosine similarity 1.00" in visit.text("#tip")


def test_pointer_and_arrow_keys_tell_a_rounds_decision(browser: Any, report: str) -> None:
    with Visit(browser, report) as visit:
        panel = visit.page.locator("#norms svg[role=slider]").first
        panel.hover()
        assert "cluster 0: " in visit.text("#tip")
        assert "for reasons of round" in visit.text("#tip")
        panel.focus()
        visit.page.keyboard.press("End")
        assert "Round 6, cluster 0: split" in str(panel.get_attribute("aria-valuetext"))
        visit.page.keyboard.press("ArrowLeft")
        assert "Round 5" in visit.text("#tip")
        visit.page.keyboard.press("Escape")
        assert visit.page.locator("#tip").is_hidden()
        visit.page.locator("#accuracy svg").hover()
        assert "nearest: client-" in visit.text("#tip")


def test_the_table_is_sorted_by_its_heads(browser: Any, report: str) -> None:
    with Visit(browser, report) as visit:
        names = "#clients tbody tr th"
        assert visit.page.locator(names).all_inner_texts()[:3] == [
            "client-0",
            "client-1",
            "client-2",
        ]
        head = visit.page.locator("#clients thead th", has_text="gain")
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "ascending"
        gains = visit.page.locator("#clients tbody td:nth-child(6)").all_inner_texts()
        numbers = [float(gain.replace("−", "-")) for gain in gains]
        assert numbers == sorted(numbers)
        assert numbers[0] < 0 < numbers[-1]
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == "descending"


def test_one_client_can_be_brought_out_and_more_shown(browser: Any, report: str) -> None:
    with Visit(browser, report) as visit:
        visit.page.select_option("#client", label="client-7")
        assert "FL model, client-7" in visit.page.locator("#accuracy svg").inner_html()
        assert visit.page.locator("#data .card").count() == 12
        visit.page.click("#data button")
        assert visit.page.locator("#data .card").count() == 30


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_serious_finding_of_axe(browser: Any, report: str, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    with Visit(browser, report, theme=theme) as visit:
        visit.page.click("text=Versions")
        found = axe.Axe().run(visit.page).response["violations"]
        serious = [
            (v["id"], [node["html"] for node in v["nodes"][:3]])
            for v in found
            if v["impact"] in ("serious", "critical")
        ]
        assert serious == []


def test_names_with_markup_are_shown_as_text(browser: Any, tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", name=HOSTILE, classes=(HOSTILE, "</script>", "&lt;b&gt;"))
    with Visit(browser, write_report(run).as_uri(), width=400) as visit:
        assert visit.complaints == []
        assert HOSTILE.format(3) in visit.page.locator("#clients tbody th").all_inner_texts()
        assert "&lt;b&gt;" in visit.text("#data .hint")
        assert visit.page.locator("main b").count() == 0
        assert visit.page.locator("main img[onerror]").count() == 0
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("clients", [2, 200])
def test_few_and_many_clients(browser: Any, tmp_path: Path, clients: int) -> None:
    run = made_up_run(tmp_path / "run", clients=clients, rounds=60, refused=10)
    with Visit(browser, write_report(run).as_uri()) as visit:
        assert visit.complaints == []
        assert visit.page.locator("#clients tbody tr").count() == clients
        visit.slide("#eps1", 2.0)
        visit.slide("#matrix", 1)


def test_a_run_without_anything_to_show(browser: Any, tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", rounds=4, refused=0, finished=False, data=False)
    for file in run.rglob("*.npz"):
        file.unlink()
    with Visit(browser, write_report(run).as_uri(), width=400) as visit:
        assert visit.complaints == []
        assert "No similarity was computed" in visit.text("#similarity")
        assert "Not known to this run" in visit.text("#data")


def test_watching_keeps_what_was_set(browser: Any, tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run", finished=False)
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join(lines[:10]))
    with ReportServer(run) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        with Visit(browser, server.url) as visit:
            visit.slide("#eps1", 1.5)
            visit.page.locator("#clients thead button").first.click()
            (run / "rounds.jsonl").write_text("".join(lines))
            visit.page.locator("#facts dd", has_text="20 of 20").wait_for(timeout=15_000)
            assert visit.complaints == []
            assert float(visit.page.input_value("#eps1")) == pytest.approx(1.5, abs=0.01)
            assert visit.page.locator("#clients tbody th").first.inner_text() == "client-7"
            assert {url.removeprefix(server.url) for url in visit.requests} <= {
                "",
                "content",
                "data:,",
            }
        server.shutdown()
