"""The report in a real browser: no errors, no network, everything answers, everyone can use it."""

import csv
import json

import pytest

from cflower.runs.findings import NOT_MEASURED
from cflower.runs.report import write_report
from cflower.runs.report.content import PARTS, page_content
from tests.runs.chromium import IN_CHROMIUM, Visit
from tests.runs.folders import MOVES, edited, made_up_run, with_personal_step

pytestmark = IN_CHROMIUM
CHART = "#scores [data-key=scores]"
HOSTILE = "<img src=x onerror=alert({})><b>bold</b>"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    run = made_up_run(tmp_path_factory.mktemp("runs") / "run", clients=30)
    return write_report(run).as_uri()


@pytest.fixture
def visit(browser, report):
    with Visit(browser, report) as visit:
        yield visit


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
def test_it_loads_alone_and_fits(browser, report, width, theme):
    with Visit(browser, report, width=width, theme=theme) as visit:
        assert [url for url in visit.requests if not url.startswith("data:")] == [report]
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        background = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = sum(int(c) for c in background[4:-1].split(",")) < 3 * 128
        assert dark == (theme == "dark")
        wide = visit.page.evaluate(
            "[...document.querySelectorAll('main svg, main canvas, main section')]"
            ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).length"
        )
        assert wide == 0


@pytest.mark.parametrize("part", PARTS)
def test_what_fails_is_a_sentence_in_its_place(opened, tmp_path, monkeypatch, part):
    nothing = PARTS[part][1]
    monkeypatch.setitem(PARTS, part, (lambda run: 1 / 0, nothing))
    visit = opened(moves=MOVES)
    places = visit.page.locator("main :is(div, p)[id]:has-text('(ZeroDivisionError:')")
    assert places.count() == 1
    visit.page.click("#theme")
    assert places.count() == 1
    assert "undefined" not in visit.text("main")


@pytest.mark.parametrize("part", ["cost", "scores", "problems", "config"])
def test_what_cannot_be_drawn_is_a_sentence_in_its_place(opened, monkeypatch, part):
    monkeypatch.setattr(
        "cflower.runs.report.page_content", lambda run: {**page_content(run), part: None}
    )
    text = opened().text("main")
    assert text.count("This part of the report could not be drawn: ") == 1


def test_the_theme_is_switched(visit):
    color = "getComputedStyle(document.body).backgroundColor"
    before = visit.page.evaluate(color)
    visit.page.click("#theme")
    assert visit.page.evaluate(color) != before


def test_a_matrix_is_chosen_and_read(visit):
    assert visit.texts("#matrix option") == ["cluster 0, round 6: split"]
    assert visit.texts("#similarity thead th") == ["mean cosine", "group 1", "group 2"]
    visit.page.click("#similarity summary:text-is('Client by client')")
    matrix = visit.page.locator("#similarity svg")
    matrix.hover(position={"x": 80, "y": 12})
    assert "client-0\nclient-0\ncosine similarity 1.00" in visit.text("#tip")
    matrix.focus()
    visit.page.keyboard.press("End")
    assert "Round 6, cluster 0: split" in visit.text("#matrix-text")
    assert "client-29: mean similarity 0." in str(matrix.get_attribute("aria-valuetext"))
    visit.page.keyboard.press("Enter")
    assert visit.page.input_value("#pick-client") == "29"


def test_every_change_is_one_sentence_with_its_figures_folded(visit):
    split, *stayed = visit.texts("#why .change")
    assert split == (
        "Round 6, cluster 0, split: for reasons of round 6. "
        "Parts: 0.0 (15 clients), 0.1 (15 clients)."
    )
    content = "Round 20, cluster {}, clients content: for reasons of round 20."
    assert stayed == [content.format(leaf) for leaf in ("0.0", "0.1")]
    visit.page.locator("#why summary").first.click()
    text = visit.text("#why .change")
    assert "mean norm\n0.5\nlargest norm\n3\nalpha cross\n−0.3" in text
    assert visit.texts("#why .change >> nth=0 >> li") == [
        "Rounds 1–3, still moving: for reasons of round 3.",
        "Rounds 4–5, sides not apart enough: for reasons of round 5.",
        "Round 6, split: for reasons of round 6.",
    ]
    visit.page.click("#why button:text-is('Rounds 4–5')")
    assert visit.page.input_value("#pick-round") == "5"
    assert visit.page.locator("#why .change[open]").count() == 1


def test_pointer_and_arrow_keys_show_a_rounds_decision(visit):
    visit.page.locator("#why summary").first.click()
    norms = visit.page.locator("#why svg[role=slider]").first
    norms.hover()
    assert "for reasons of round" in visit.text("#tip")
    norms.focus()
    visit.page.keyboard.press("End")
    assert "Round 6, split: for reasons" in str(norms.get_attribute("aria-valuetext"))
    visit.page.keyboard.press("ArrowLeft")
    assert "Round 5" in visit.text("#tip")
    visit.page.keyboard.press("Escape")
    assert visit.page.locator("#tip").is_hidden()
    visit.page.locator(CHART).hover()
    assert "nearest: client-" in visit.text("#tip")


def test_a_tap_shows_the_values_until_the_next_one(browser, report):
    with Visit(browser, report, width=390, touch=True) as visit:
        visit.page.locator(CHART).tap()
        assert "nearest: client-" in visit.text("#tip")
        visit.page.locator("#scores-title").tap()
        assert visit.page.locator("#tip").is_hidden()


def test_everything_follows_a_picked_cluster(visit):
    visit.page.click("text=Client by client")
    visit.page.locator("#tree .band").nth(1).click()
    assert visit.page.input_value("#pick-cluster") == "0.0"
    assert "cluster=0.0" in visit.page.url
    assert visit.page.locator("#client-table tbody tr").count() == 15
    assert visit.text("#shown-clients") == "15 of 30 clients of cluster 0.0"
    assert visit.text("#why .chosen[open] summary").startswith("Round 20, cluster 0.0, ")
    assert visit.page.locator("#tree .band[aria-pressed=true]").count() == 1
    assert visit.texts("#data .card h3 button") == [f"client-{i}" for i in range(12)]
    visit.page.keyboard.press("Enter")  # the band still has the focus, and lets go
    assert visit.page.input_value("#pick-cluster") == ""
    visit.page.click("#clusters button:text-is('0.1')")
    assert visit.texts("#client-table tbody th")[0] == "client-15"
    visit.page.click("#picks button:text-is('Clear')")
    assert visit.page.locator("#client-table tbody tr").count() == 30


def test_everything_follows_a_picked_client_and_round(visit):
    visit.page.click("#client-table button:text-is('client-7')")
    visit.page.locator("#scores", has_text="common model, client-7").wait_for()
    assert visit.page.locator("#data .card.chosen h3 button").inner_html() == "client-7"
    assert visit.texts("#client-table tr.chosen th") == ["client-7"]
    visit.page.click("#similarity summary:text-is('Client by client')")
    assert visit.page.locator("#similarity text.strong").inner_html() == "client-7"
    chart = visit.page.locator(CHART)
    chart.focus()
    for _ in range(3):
        visit.page.keyboard.press("ArrowRight")
    visit.page.keyboard.press("Enter")
    assert visit.page.input_value("#pick-round") == "4"
    assert visit.page.evaluate("document.activeElement.getAttribute('data-key')") == "scores"
    assert visit.page.locator("#tree .picked").count() == 1


def test_the_address_has_what_was_set(browser, report):
    with Visit(browser, report) as visit:
        visit.page.select_option("#pick-cluster", value="0.1")
        visit.page.select_option("#pick-round", value="9")
        visit.page.select_option("#pick-client", label="client-20")
        visit.page.fill("#search", "client-2")
        visit.page.locator("#client-table thead button").nth(2).click()
        address = visit.page.url
    with Visit(browser, address) as visit:
        assert visit.page.input_value("#pick-cluster") == "0.1"
        assert visit.page.input_value("#pick-round") == "9"
        assert visit.page.input_value("#pick-client") == "20"
        assert visit.text("#shown-clients") == "10 of 30 clients of cluster 0.1"
        assert visit.page.locator("thead th[aria-sort=ascending]").inner_text() == "this run ↑"
    with Visit(browser, f"{report}#cluster=%3Cb%3E&round=99&client=nobody&sort=x") as visit:
        assert visit.page.input_value("#pick-cluster") == ""
        assert visit.page.locator("#client-table tbody tr").count() == 30


def test_a_heading_is_an_address(browser, report):
    with Visit(browser, report) as visit:
        visit.page.locator("#data-title a").click()
        assert visit.page.url.endswith("#at=data")
    with Visit(browser, f"{report}#at=data") as visit:
        top = "document.getElementById('data-title').getBoundingClientRect().top"
        visit.page.wait_for_function(f"Math.abs({top}) < innerHeight / 2")


def test_pictures_and_data_are_saved(visit):
    visit.page.click("#similarity summary:text-is('Client by client')")
    drawing = visit.saved("Save the picture similarity-6-0 as SVG").decode()
    assert drawing.startswith("<svg")
    assert "var(" not in drawing
    assert "client-29" in drawing
    assert visit.saved("Save the picture tree as PNG").startswith(b"\x89PNG")
    rows = list(csv.DictReader(visit.saved("Clients (CSV)").decode().splitlines()))
    assert [row["client"] for row in rows] == [f"client-{i}" for i in range(30)]
    assert {row["cluster"] for row in rows} == {"0.0", "0.1"}
    rounds = list(csv.DictReader(visit.saved("Rounds and decisions").decode().splitlines()))
    assert rounds[5]["reason"] == "for reasons of round 6"
    assert json.loads(visit.saved("Everything (JSON)"))["run"]["rounds"] == 20


def test_the_table_is_sorted_by_its_heads(visit):
    names = "#client-table tbody tr th"
    assert visit.texts(names)[:3] == ["client-0", "client-1", "client-2"]
    head = visit.page.locator("#client-table thead th", has_text="difference")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    gains = visit.texts("#client-table tbody td:nth-child(5)")
    numbers = [float(gain.replace("−", "-").rstrip(" ▲▼")) for gain in gains]
    assert numbers == sorted(numbers)
    assert numbers[0] < 0 < numbers[-1]
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"


def test_the_common_model_is_compared_with_the_own_one(visit):
    even = "Worst 10% of clients 90.1%, standard deviation 0.9 points"
    assert visit.texts("#compared dd") == ["91.5%", even, "74.0%", NOT_MEASURED.replace("`", "")]
    assert visit.texts("#compared code") == ["cflower try"]
    dotted = visit.page.locator(f"{CHART} line[stroke-dasharray='2 4']")
    assert dotted.count() == 2  # the line at the end, and its key


def test_measured_baselines_are_next_to_the_own_model(opened):
    visit = opened(clients=30, baselines={"federated": 0.914, "isolated": 0.5})
    assert visit.texts("#compared dt")[2:] == [
        "conventional FL",
        "each client alone",
    ]
    against = visit.texts("#compared .against")
    assert against[0].startswith("This run against it: +0.1 points (95% interval −")
    assert against[0].endswith("), 15 clients better, 14 worse: may be chance.")
    assert against[1].endswith(": worth it.")
    heads = visit.texts("#client-table thead th")
    assert heads[2:5] == ["this run", "conventional FL", "difference (points)"]
    assert heads[5] == "each client alone"
    assert "conventional FL: 91.4%" in visit.text("#scores")
    rows = list(csv.DictReader(visit.saved("Clients (CSV)").decode().splitlines()))
    assert {
        tuple(row[f"{way}: accuracy"] for way in ("conventional FL", "each client alone"))
        for row in rows
    } == {("0.914", "0.5")}


def test_the_first_rounds_can_be_left_out(browser, report):
    with Visit(browser, report) as visit:
        ticks = visit.page.locator(f"{CHART} text")
        assert "60%" in ticks.all_text_contents()
        visit.page.select_option("#from", value="7")
        assert "from=7" in visit.page.url
        assert "60%" not in ticks.all_text_contents()
        chart = visit.page.locator(CHART)
        assert chart.get_attribute("aria-valuemin") == "7"
        chart.focus()
        visit.page.keyboard.press("End")
        assert "At the end" in visit.text("#tip")
        address = visit.page.url
    with Visit(browser, address) as visit:
        assert visit.page.input_value("#from") == "7"
    with Visit(browser, report.replace("report.html", "report.html#from=99")) as visit:
        assert visit.page.input_value("#from") == "1"


def test_a_thousand_clients_open_in_two_seconds_of_computing(opened):
    visit = opened(clients=1000, rounds=50, refused=30)
    session = visit.page.context.new_cdp_session(visit.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    visit.page.reload()
    visit.page.wait_for_selector("#scores svg")
    times = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    spent = sum(times[k] for k in ("ScriptDuration", "LayoutDuration", "RecalcStyleDuration"))
    assert 0 < spent < 2


@pytest.mark.parametrize("method", ["federated", "isolated"])
def test_a_run_without_clustering_does_not_mention_it(opened, tmp_path, method):
    run = made_up_run(tmp_path / "run", method=method, refused=0)
    with edited(run / "summary.json") as summary:
        summary["splits"] = []
    visit = opened(run)
    for part in ("#tree svg", "#similarity svg", "#why"):
        assert not visit.page.locator(part).is_visible()
    visit.page.evaluate("document.getElementById('config').remove()")
    text = visit.text("main")
    for word in ("criterion", "cluster", "difference", "common model", "★"):
        assert word not in text
    assert visit.texts("#client-table thead th")[:2] == ["client ↑", "this run"]


def test_a_metric_that_is_better_lower(opened, tmp_path):
    run = made_up_run(tmp_path / "run")
    for name in ("summary.json", "rounds.jsonl"):
        text = (run / name).read_text().replace("accuracy", "perplexity")
        (run / name).write_text(text)
    with edited(run / "summary.json") as summary:
        summary["metric"] = {"name": "perplexity", "higher_is_better": False}
    visit = opened(run)
    assert visit.texts("#scores h3") == ["Perplexity", "Loss"]
    own, _, common, *_ = visit.texts("#compared dd")
    assert (own, common) == ("0.9035", "0.7375")
    better = "1 client better than under the common model, 7 worse"
    assert better in visit.texts("#facts span")  # client-3 had 1.0 before


def test_more_samples_are_shown_and_labelled(visit):
    visit.page.click("text=Client by client")
    assert visit.page.locator("#data .card").count() == 12
    assert visit.texts("#data .card >> nth=0 >> figcaption") == ["a", "b"]
    visit.page.click("#data .more")
    assert visit.page.locator("#data .card").count() == 30


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_has_no_complaints(browser, report, theme):
    with Visit(browser, report, theme=theme) as visit:
        for summary in visit.page.locator("summary").all():
            summary.click()
        assert complaints(visit.page) == []


def complaints(page):
    """What axe finds on a page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    found = axe.Axe().run(page).response["violations"]
    return [(v["id"], [node["html"] for node in v["nodes"][:3]]) for v in found]


def test_names_with_markup_are_shown_as_text(opened):
    visit = opened(name=HOSTILE, classes=(HOSTILE, "</script>", "&lt;b&gt;"), width=400)
    assert HOSTILE.format(3) in visit.page.locator("#client-table tbody th").all_inner_texts()
    assert "&lt;b&gt;" in str(visit.page.locator("#data").text_content())
    assert visit.page.locator("main b").count() == 0
    assert visit.page.locator("main img[onerror]").count() == 0
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("clients", [2, 100, 200])
def test_few_and_many_clients(opened, clients):
    visit = opened(clients=clients, rounds=60, refused=10)
    assert visit.page.locator("#client-table tbody tr").count() == clients
    assert visit.page.locator("#scores .panel").count() == (2 if clients > 40 else 0)
    if clients > 12:
        visit.page.click("#similarity summary:text-is('Client by client')")
        visit.page.wait_for_selector("#similarity svg")
    labels = visit.page.locator("#similarity svg text").all_text_contents()
    assert len(labels) == (clients if clients <= 100 else 0)


def test_a_run_without_anything_to_show(opened, tmp_path):
    run = made_up_run(tmp_path / "run", rounds=4, refused=0, finished=False, data=False)
    for file in run.rglob("*.npz"):
        file.unlink()
    visit = opened(run, width=400)
    assert "No similarity was computed" in visit.text("#similarity")
    assert "the clients of this run sent no previews" in visit.text("#data")


@pytest.mark.parametrize(("width", "says"), [(390, "sideways for more columns"), (1280, "down")])
def test_a_table_that_is_larger_than_its_box_says_so(browser, report, width, says):
    with Visit(browser, report, width=width) as visit:
        assert says in visit.text("#clients >> #client-table .more-of")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_methods_of_a_try_are_a_table_with_advice(browser, tmp_path, width):
    values = {"federated": 0.5, "isolated": 0.2, "tuned": 0.6, "clustered": 0.9}
    run = with_personal_step(made_up_run(tmp_path / "run", baselines=values))
    report = write_report(run).as_uri()
    with Visit(browser, report, width=width) as visit:
        assert visit.text("#remarks").startswith("Use clusters, then personal (with ClusteredFL)")
        assert visit.texts("#methods tbody th") == [
            *("each client alone", "conventional FL", "conventional FL, then alone"),
            *("clusters only", "clusters, then personal"),
        ]
        label = visit.page.locator("#evenly svg").first.get_attribute("aria-label")
        assert "this run: worst 90.0%" in label and "each client alone: worst 20.0%" in label
        assert complaints(visit.page) == []
