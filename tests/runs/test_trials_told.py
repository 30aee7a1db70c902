"""What report, explain and tables say of splits on trial: of a real run of each kind."""

import json
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, MetricRecord, RecordDict

from cflower import Recorder
from cflower.runs.explain import explanation
from cflower.runs.record import RunRecord, lasting
from cflower.runs.report.content import page_content
from cflower.runs.tables import as_text, cluster_tree
from tests.strategy.quadratics import Quadratics, initial_arrays, strategy_of
from tests.strategy.test_trials import Halves


def recorded(path: Path, clients: Quadratics, rounds: int) -> RunRecord:
    """A run that is split in the middle in round 3, on trial for three rounds."""
    recorder = Recorder(path)
    settings = {"metric": "loss", "trial_rounds": 3, "fraction_evaluate": 0.0}
    strategy = strategy_of(criterion=Halves(), observers=[recorder], **settings)
    strategy.start(clients.grid(), initial_arrays(), num_rounds=rounds)
    return RunRecord.read(recorder.path)


@pytest.fixture
def undone(tmp_path: Path) -> RunRecord:
    return recorded(tmp_path, Quadratics((0,) * 6), 9)


def test_of_an_undone_split_the_page_has_the_sentence_and_no_parts(undone: RunRecord) -> None:
    page = page_content(undone)
    assert [cluster["name"] for cluster in page["clusters"]] == ["0"]
    assert set(page["lines"]["cluster"]) == {"0"}
    assert page["lines"]["round"] == [1, 2, 3, 7, 8, 9]
    (trial,) = page["trials"]
    assert trial["round"] == 6
    assert trial["outcome"] == "split taken back"
    assert trial["reason"] == undone.summary["splits"][0]["verdict"]
    assert page["run"]["common"] is page["run"]["firstSplit"] is None
    assert page["heard"] == [[9, 9]] * 6
    assert lasting(undone.summary["splits"]) == []
    assert undone.summary["common_rounds"] == 9


def test_explain_tells_of_it_and_of_the_parts_that_were_joined(undone: RunRecord) -> None:
    text = explanation(undone)
    assert "Cluster 0 (6 clients, rounds 1 to 9): was not split." in text
    assert "round 6, split taken back: 12 held-out examples" in text
    assert "Cluster 0.0 (3 clients, rounds 4 to 6): was joined with its other parts again." in text


def test_every_time_that_the_clients_judged_is_told(tmp_path: Path) -> None:
    def always_one(message: Message, content: RecordDict, _: int) -> Message:
        content["metrics"] = MetricRecord({"loss": 1.0, "num-examples": 30})
        return Message(content, reply_to=message)

    clients = Quadratics((0,) * 6, spoil_evaluate=dict.fromkeys(range(6), always_one))
    run = recorded(tmp_path, clients, 14)
    told = [(trial["round"], trial["standing"]) for trial in page_content(run)["trials"]]
    assert told == [(6, "open"), (9, "open"), (12, "undone")]
    assert "round 6, on trial: no gain that chance does not make" in explanation(run)
    assert "the clients judge again in round 12" in explanation(run)


@pytest.mark.parametrize(
    ("rounds", "standing", "told"), [(9, "confirmed", "confirmed"), (5, "open", "still on trial")]
)
def test_a_lasting_split_is_told_with_its_standing(
    rounds: int, standing: str, told: str, tmp_path: Path
) -> None:
    run = recorded(tmp_path, Quadratics((0, 0, 0, 1, 1, 1)), rounds)
    page = page_content(run)
    assert [cluster["name"] for cluster in page["clusters"]] == ["0", "0.0", "0.1"]
    assert run.summary["splits"][0]["trial"] == standing
    assert page["trials"][0]["outcome"] in ("split confirmed", "on trial")
    assert page["run"]["commonModel"] == f"common model ({min(rounds, 6)} of {rounds} rounds)"
    tree: dict[str, Any] = json.loads((run.path / "tree.json").read_text())
    assert f"split in round 3, {told}" in as_text(cluster_tree(run.summary, tree))
