"""`report.html`: what it holds, for every state of a run, and that nothing in it is trusted."""

import json
import re
from base64 import b64decode
from html.parser import HTMLParser

import numpy as np
import pytest

from cflower import Recorder
from cflower.runs.record import RecordedMatrix, RunRecord
from cflower.runs.report import content, write_report
from cflower.runs.report.build import sources
from cflower.runs.report.content import page_content
from cflower.runs.report.matrices import proposed_sides
from cflower.runs.report.page import page, parts
from cflower.runs.report.samples import label_matches
from tests.command import error_of
from tests.runs.folders import edited, made_up_run, with_means, with_trial
from tests.strategy.quadratics import Quadratics, initial_arrays, strategy_of

HOSTILE = '</script><img src=x onerror="alert({})">\u2028&amp;'


class Elements(HTMLParser):
    """The elements of a page, and the addresses in its attributes."""

    def __init__(self):
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "action", "data")]


def elements(text):
    found = Elements()
    found.feed(text)
    return found


def content_in(text):
    found = re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.S)
    assert found
    return dict(json.loads(found[1]))


def test_one_file_that_loads_nothing(made_up):
    text = write_report(made_up).read_text()
    found = elements(text)
    assert [address for address in found.addresses if not address.startswith("data:")] == []
    assert set(re.findall(r"https?://[\w./]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "fetch(" not in text
    assert "default-src 'none'" in text
    assert "connect-src" not in text


def test_the_page_holds_everything_of_the_run(made_up):
    run = RunRecord.read(made_up)
    content = page_content(run)
    assert content["run"]["sentence"] == (
        "7 of 8 clients are served better in two groups, 1 worse: 90.3% right, 73.8% with the "
        "common model of round 5."
    )
    assert len(content["lines"]["round"]) == len(run.lines)
    assert [c["name"] for c in content["clients"]] == [f"client-{i}" for i in range(8)]
    assert {"key": "eps2", "value": 1.6} in content["config"]
    assert {"key": "criterion.eps2", "value": 1.6} in content["settings"]
    assert {"key": "output-dir", "value": "…/cflower-runs"} in content["config"]
    silent = {"client": 0, "problem": "did not come within 60 s", "rounds": [3]}
    assert content["problems"] == [silent]
    assert content["heard"][0] == [19, 20]
    assert content["scores"][0][2] is None
    assert content["data"]["counts"][3] == [3, 2, 1]
    assert content["bodies"] == [["0.0"], ["0.1"]]
    assert content["data"]["samples"][0]["sheet"].startswith("data:image/png;base64,")
    assert content_in(page(content)) == json.loads(json.dumps(content))


def test_matrices_stand_in_the_order_of_their_split(made_up):
    shown = page_content(RunRecord.read(made_up))["matrices"]
    assert [entry["outcome"] for entry in shown] == ["split"]
    for entry in shown:
        assert entry["sides"] == [4, 4]
        assert entry["clients"][:4] == [0, 1, 2, 3]
        assert sorted(entry["clients"]) == list(range(8))
        values = np.frombuffer(b64decode(entry["values"]), np.int8)
        assert values.shape == (8 * 7 // 2,)
        assert values[:3].min() > 0 > values[3]  # within the first side, then across


def test_a_side_that_is_not_contiguous_is_brought_together(made_up):
    signs = np.array([1, -1, 1, -1, 1, -1, 1, -1])
    matrix = np.outer(signs, signs) * 0.5 + np.eye(8) * 0.5
    recorded = RecordedMatrix(tuple(f"client-{i}" for i in range(8)), matrix)
    assert proposed_sides(RunRecord(made_up), recorded) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_labels_that_stand_for_others_are_found_unless_most_have_no_partner():
    looks = np.eye(5)
    swapped = looks[[1, 0, 2, 3, 4]]
    assert label_matches({"0.0": looks, "0.1": swapped}) == {"0.1": [(0, 1), (1, 0)]}
    assert label_matches({"0.0": looks, "0.1": looks, "0.2": np.ones((5, 5))}) == {}
    swapped[2] = np.nan  # a class without examples
    assert label_matches({"0.0": looks, "0.1": swapped}) == {"0.1": [(0, 1), (1, 0)]}


def test_leaves_that_share_no_class_have_no_labels_for_each_other():
    first, second = np.eye(4), np.eye(4)
    first[2:], second[:2] = np.nan, np.nan
    assert label_matches({"0.0": first, "0.1": second}) == {}


@pytest.mark.parametrize("part", content.PARTS)
def test_a_part_that_fails_is_one_sentence_and_the_others_are_there(made_up, part, monkeypatch):
    whole = page_content(RunRecord.read(made_up))
    nothing = content.PARTS[part][1]
    monkeypatch.setitem(content.PARTS, part, (lambda run: run.no_such_thing, nothing))
    rest = page_content(RunRecord.read(made_up))
    why = "(AttributeError: 'RunRecord' object has no attribute 'no_such_thing')"
    assert rest.pop("failed") == {part: f"This part of the report could not be made {why}."}
    assert whole.pop("failed") == {}
    assert rest == {**whole, part: nothing}


def test_a_folder_of_which_no_report_can_be_made_is_refused_in_one_sentence(tmp_path):
    run = made_up_run(tmp_path / "run")
    with edited(run / "config.json") as config:
        del config["settings"]["method"]
    assert f"{run} is damaged (KeyError: 'method'). " in error_of("report", run)


def test_names_with_markup_end_up_as_data_only(tmp_path):
    path = made_up_run(tmp_path / "run", name=HOSTILE, classes=("<b>x</b>", "</script>", "&lt;"))
    plain = made_up_run(tmp_path / "plain")
    hostile_text, plain_text = write_report(path).read_text(), write_report(plain).read_text()
    assert elements(hostile_text).tags == elements(plain_text).tags
    clients = content_in(hostile_text)["clients"]
    printable = HOSTILE.replace("\u2028", " ")  # a line separator is none in a page or a terminal
    assert [client["name"] for client in clients] == [printable.format(i) for i in range(8)]


def test_the_common_model_has_no_curve_of_what_the_leaves_models_were_evaluated_on(tmp_path):
    run = with_trial(made_up_run(tmp_path / "run"), "split taken back")
    for fraction, known in ((0.0, [*range(1, 7), 10]), (1.0, list(range(1, 6)))):
        with edited(run / "config.json") as config:
            config["settings"]["fraction-evaluate"] = fraction
        curve = page_content(RunRecord.read(run))["common"]["score"]
        assert [number for number, value in enumerate(curve, start=1) if value] == known


def test_a_run_that_goes_on_and_one_that_has_just_begun(tmp_path):
    path = made_up_run(tmp_path / "run", finished=False, data=False)
    with (path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 21, "clu')  # being written
    content = page_content(RunRecord.read(path))
    assert content["run"]["sentence"] == "So far, after 20 rounds: 8 clients in two groups."
    assert content["clients"][0]["fl"] is None
    assert content["data"] is None
    for file_ in path.rglob("*.*"):
        if file_.name != "config.json":
            file_.unlink()
    assert page_content(RunRecord.read(path))["run"]["rounds"] == 0
    write_report(path)


def test_mean_examples_by_cluster_and_class(tmp_path):
    run = with_means(made_up_run(tmp_path / "run"))
    data = page_content(RunRecord.read(run))["data"]
    assert data["matches"] == {}
    assert data["means"] == {"0.0": [[[1, 2]], [[3, 3]], None], "0.1": [[[-1, -2]], [[3, 3]], None]}


def test_figures_of_another_criterion_and_numbers_that_are_none(tmp_path):
    path = made_up_run(tmp_path / "run")
    with edited(path / "rounds.jsonl") as lines:
        lines[0] |= {"figures": {"eps1": 0.123456789, "p_value": 0.5}, "mean_norm": float("nan")}
    content = page_content(RunRecord.read(path))
    assert content["lines"]["figures"][0] == {"eps1": 0.12346, "p_value": 0.5}
    assert content["lines"]["mean"][0] is None
    page(content)


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "rounds"), [(500, 200), (1000, 50)])
def test_a_large_run_stays_below_3_megabytes(tmp_path, clients, rounds):
    path = made_up_run(tmp_path / "run", clients=clients, rounds=rounds, refused=30)
    assert write_report(path).stat().st_size < 3_000_000
    shown = page_content(RunRecord.read(path))["matrices"]
    assert [(matrix["cluster"], matrix["outcome"]) for matrix in shown] == [("0", "split")]


def test_the_joined_page_is_fresh():
    assert parts() == sources(), "run `make page`"


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_another_apps_page_has_its_own_config_and_when_it_measured(tmp_path, share):
    recorder = Recorder(tmp_path, {"local-epochs": 5, "optimizer.name": "adam"})
    strategy = strategy_of(observers=[recorder], personal=False, fraction_evaluate=share)
    strategy.start(Quadratics((0, 0, 1, 1)).grid(), initial_arrays(), 2)
    content = page_content(RunRecord.read(recorder.path))
    config = [tuple(entry.values()) for entry in content["config"]]
    assert config == [("local-epochs", 5), ("optimizer.name", "adam")]
    assert content["run"]["evaluated"] == (share > 0)
