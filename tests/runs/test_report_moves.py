"""Votes on splits, moves, baselines and groups on the page, in Chromium."""

import pytest

from cflower.runs.record import RunRecord
from cflower.runs.report import write_report
from cflower.runs.report.content import page_content
from tests.runs.chromium import IN_CHROMIUM, Visit
from tests.runs.folders import MOVES, edited, made_up_run, with_trial

pytestmark = IN_CHROMIUM


def test_a_move_is_drawn_in_the_tree_and_stands_in_the_line_of_time_and_in_why(opened):
    visit = opened(moves=MOVES)
    arrows = visit.page.locator("#tree .move")
    assert arrows.evaluate_all("all => all.map(a => a.dataset.round)") == ["9", "14"]
    assert visit.page.locator("#tree .move text").all_text_contents() == ["client-1", "2 clients"]
    steps = [" ".join(text.split()) for text in visit.texts("#timeline li")]
    moves = ["Round 9 1 move to 0.1", "Round 14 2 moves to 0.1"]
    assert steps == ["Round 6 cluster 0 split into 2", *moves]
    why = "Round 9: client-1 moved from 0.0 to 0.1: its update was 31 times as long."
    assert visit.texts("#why .change > summary")[1] == why
    arrows.first.click()
    assert visit.page.input_value("#pick-client") == "1"
    assert visit.page.input_value("#pick-round") == "9"
    chart = visit.page.locator("#scores [data-key=scores]")
    assert chart.locator("circle.moved").count() == 2
    chart.focus()
    for _ in range(8):
        visit.page.keyboard.press("ArrowRight")
    assert "client-1 moved to 0.1" in visit.text("#tip")
    visit.page.click("#why summary:has-text('Round 14: client-2, client-3')")
    visit.page.click("#why button:text-is('client-3')")
    assert visit.page.input_value("#pick-client") == "3"
    assert visit.texts("#why li.chosen") == ["client-3: most like those of 0.1."]


def test_a_band_is_as_high_as_its_members_are_many(opened):
    visit = opened(moves=MOVES)
    root, first, second = visit.page.locator("#tree .band[data-key]").evaluate_all(
        "bands => bands.map(band => band.getBBox().height)"
    )
    # Eight in all; the first had four at most, the second seven.
    assert first / root == pytest.approx(4 / 8, rel=0.01)
    assert second / root == pytest.approx(7 / 8, rel=0.01)


def test_signs_of_what_clients_judged(browser, tmp_path):
    for outcome, chance, sign in [
        ("split confirmed", 0.001, "✓"),
        ("split confirmed", 0.1, "≈"),
        ("split taken back", 0.5, "✗"),
        ("split not judged", None, "?"),
    ]:
        run = with_trial(made_up_run(tmp_path / f"run{sign}"), outcome, chance)
        with Visit(browser, write_report(run).as_uri()) as visit:
            trial = visit.page.locator("#tree .trial")
            assert trial.locator("text").inner_html() == sign
            assert sign in visit.texts("#tree-legend strong")
            now = 10 if outcome == "split taken back" else 6
            sentence = f"Round {now}, cluster 0, {outcome}: the clients judged."
            assert sentence in visit.texts("#why .change")
            trial.hover()
            assert "the clients judged" in visit.text("#tip")
            trial.click()
            assert f"cluster=0&round={now}" in visit.page.url


def test_a_split_that_was_taken_back_leaves_one_band(opened, tmp_path):
    run = with_trial(made_up_run(tmp_path / "run"), "split taken back", 0.5)
    with edited(run / "tree.json") as tree:
        root = tree["clusters"]["0"] | {"children": [], "split_round": None, "born": 10}
        tree["clusters"] = {"0": root | {"undone": [{"began": 6, "until": 10, "parts": []}]}}
    assert page_content(RunRecord.read(run))["clusters"][0]["born"] == 0
    visit = opened(run)
    assert visit.page.locator("#tree .band[data-key]").count() == 1
    assert "split that was taken back" in visit.text("#tree-legend")
    band = visit.page.locator("#tree .band[data-key]").bounding_box()
    stage = visit.page.locator("#tree svg").bounding_box()
    assert band["width"] > 0.9 * stage["width"]


def test_baselines_have_their_lines_by_round(opened):
    visit = opened(baselines={"federated": 0.8, "isolated": 0.75})
    chart = visit.page.locator("#scores [data-key=scores]")
    assert chart.locator(".baseline").count() == 2
    chart.focus()
    for _ in range(5):
        visit.page.keyboard.press("ArrowRight")
    text = visit.text("#tip")
    assert "conventional FL: 75.0%" in text
    assert "each client alone: 70.0%" in text
    assert "conventional FL: 80.0%" in visit.text("#scores")
    visit.page.select_option("#pick-client", index=2)
    assert chart.locator(".baseline").count() == 0
    assert "conventional FL, client-1: 80.0%" in visit.text("#scores")


def test_a_part_that_is_drawn_anew_has_its_pictures_at_once(opened):
    """Between a choice and the next frame no picture is missing, and the focus is where it was."""
    visit = opened()
    visit.page.locator("#scores [data-key=scores]").focus()
    missing, focus = visit.page.evaluate(
        """() => {
          const client = document.getElementById('pick-client');
          client.value = '2';
          client.dispatchEvent(new Event('change'));
          const all = [...document.querySelectorAll('.stage')];
          const shown = all.filter((stage) => stage.clientWidth);
          const missing = shown.filter((stage) => !stage.querySelector('svg'));
          return [missing.length, document.activeElement.getAttribute('data-key')];
        }"""
    )
    assert missing == 0
    assert focus == "scores"


def test_a_page_of_a_run_that_goes_on_reloads_itself_and_keeps_what_was_set(browser, tmp_path):
    run = made_up_run(tmp_path / "run", baselines={"federated": 0.8, "isolated": 0.75})
    summary, rounds = run / "summary.json", run / "rounds.jsonl"
    last, lines = summary.read_text(), rounds.read_text().splitlines(keepends=True)
    with edited(summary) as content:
        content |= {"baselines": dict.fromkeys(content["baselines"]), "finished": False}
    rounds.write_text("".join(lines[:10]))
    with Visit(browser, write_report(run, live=True).as_uri()) as visit:
        assert visit.texts("#compared dd").count("measured next") == 2
        assert "this page reloads itself" in visit.text(".brand")
        visit.page.locator("#client-table thead button").first.click()
        visit.page.fill("#search", "client-1")
        visit.page.locator("#why summary").first.click()
        place = visit.page.evaluate("scrollY")
        assert place > 500
        rounds.write_text("".join(lines))
        write_report(run, live=True)
        visit.page.locator("#facts span", has_text="20 rounds of 20").wait_for(timeout=30_000)
        visit.page.wait_for_function(f"Math.abs(scrollY - {place}) < 100")
        assert visit.page.locator("#why .change[open]").count() == 1
        assert visit.page.locator("#client-table thead th").first.inner_text() == "client ↓"
        assert visit.page.input_value("#search") == "client-1"
        summary.write_text(last)
        write_report(run)
        visit.page.locator("#compared .against").first.wait_for(timeout=30_000)
        assert "measured next" not in visit.texts("#compared dd")
        assert visit.page.locator("#scores .baseline").count() == 2
        loaded = len(visit.requests)
        visit.page.wait_for_timeout(11_000)
        assert len(visit.requests) == loaded
        assert "reloads itself" not in visit.text(".brand")
        assert all(url.startswith(("file:", "data:")) for url in visit.requests)


def test_what_differs_between_the_clusters(browser, tmp_path):
    run = made_up_run(tmp_path / "run")
    with Visit(browser, write_report(run).as_uri()) as visit:
        assert "Each class has about the same share in all clusters" in visit.text("#groups-hint")
        assert visit.texts("#groups tbody tr >> nth=0 >> .share") == ["50%", "33%", "17%"]
        pictures = visit.page.locator("#groups tbody tr").nth(1).locator(".image")
        assert [pictures.nth(i).get_attribute("aria-label") for i in range(2)] == [
            "An example labelled a, of cluster 0.1",
            "An example labelled b, of cluster 0.1",
        ]
        visit.page.click("#groups button:text-is('0.1')")
        assert visit.page.input_value("#pick-cluster") == "0.1"
    with edited(run / "clients.json") as data:
        for i in range(4):
            data["clients"][f"client-{i}"]["label_counts"] = [0, 0, 9]
    with Visit(browser, write_report(run).as_uri()) as visit:
        assert "shares of the classes differ by up to 83 points" in visit.text("#groups-hint")
