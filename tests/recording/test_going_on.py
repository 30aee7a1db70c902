"""What a run that ended early, or cannot go on, says about going on."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version

import pytest

from cflower import NeverSplit, Observer, Recorder
from cflower.errors import RunFolderError
from cflower.recording.progress import RoundProgress, print_while_read
from tests.strategy.quadratics import Quadratics, initial_arrays, strategy_of


class Interrupts(Observer):
    """Ctrl-C in the third round."""

    def on_round(self, report):
        if report.server_round == 3:
            raise KeyboardInterrupt


def started(tmp_path, *, groups=(0, 0, 0), rounds=5, interrupt=False, **keys):
    said: list[str] = []
    recorder = Recorder(tmp_path, app="mine", say=said.append, **keys)
    observers = [recorder, *([Interrupts()] if interrupt else [])]
    strategy = strategy_of(criterion=NeverSplit(), observers=observers)
    try:
        strategy.start(Quadratics(groups).grid(), initial_arrays(), num_rounds=rounds)
    except KeyboardInterrupt:
        assert interrupt
    return recorder, said


def test_a_run_that_was_interrupted_says_how_to_go_on(tmp_path):
    recorder, said = started(tmp_path, interrupt=True)
    assert said[-1] == (
        f"The run ended before its last round. {recorder.path} has all 3 finished rounds; "
        f"Recorder(resume={recorder.path.name!r}) goes on from there."
    )
    _, said = started(tmp_path, resume=recorder.path.name)
    assert not [text for text in said if "ended before" in text]


def test_a_run_without_rounds_left_says_what_it_does_and_how_to_train_further(tmp_path):
    name = started(tmp_path)[0].path.name
    _, said = started(tmp_path, resume=name)
    assert said[0] == (
        "The run has finished all 5 rounds: only its end, with the final evaluation, is repeated. "
        "To train further, resume it with more rounds, such as num-server-rounds=10."
    )
    _, said = started(tmp_path, resume=name, rounds=6)
    assert said[0] == "Going on after round 5."


def test_a_run_that_goes_on_with_other_versions_says_so(tmp_path, monkeypatch):
    def older(name):
        if name == "numpy":
            raise PackageNotFoundError
        return "1.0.0" if name == "flwr" else version(name)

    with monkeypatch.context() as patched:
        patched.setattr("cflower.recording.resume.version", older)
        run = started(tmp_path, interrupt=True)[0].path
    flwr, numpy = version("flwr"), version("numpy")
    _, said = started(tmp_path, resume=run.name)
    sentence = f"began with flwr 1.0.0, numpy (missing) and goes on with flwr {flwr}, numpy {numpy}"
    assert sum(sentence in text for text in said) == 1
    _, said = started(tmp_path, resume=started(tmp_path, interrupt=True)[0].path.name)
    assert not [text for text in said if "began with" in text]


def test_a_run_without_rounds_is_recorded(tmp_path):
    recorder, _ = started(tmp_path, rounds=0)
    assert (recorder.problem, recorder.summary["finished"]) == ("", True)
    assert (recorder.path / "report.html").exists()


def test_a_run_that_lacks_only_its_end_says_so(tmp_path):
    recorder, _ = started(tmp_path, rounds=3, interrupt=True)
    _, said = started(tmp_path, rounds=3, resume=recorder.path.name)
    assert said[0] == "Going on after round 3, the last one: the end of the run is left to do."


def test_nobody_who_reads_is_no_error_of_the_run(monkeypatch):
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        print_while_read("one")
        assert os.read(reader, 9) == b"one\n"
        os.close(reader)
        for text in ("two", "three"):
            print_while_read(text)


def test_more_rounds_under_a_key_of_the_apps_own_need_may_change(tmp_path):
    recorder, _ = started(tmp_path, interrupt=True, config={"rounds": 5})
    again = {"resume": recorder.path.name, "config": {"rounds": 7}}
    with pytest.raises(RunFolderError, match=r"rounds was 5 and is 7.*Recorder\(may_change=\["):
        started(tmp_path, **again, rounds=7)
    recorder, _ = started(tmp_path, **again, rounds=7, may_change=["rounds"])
    assert recorder.summary["rounds"] == 7


def test_another_number_of_simulated_clients_is_no_key_of_the_config(tmp_path):
    recorder, _ = started(tmp_path, interrupt=True)
    sentence = f"Cannot resume {recorder.path.name} with 4 simulated clients: it had 3"
    with pytest.raises(RunFolderError, match=sentence):
        started(tmp_path, resume=recorder.path.name, groups=(0, 0, 0, 0))


def test_a_mean_of_the_sampled_clients_says_of_how_many():
    said: list[str] = []
    settings = {"fraction_evaluate": 0.5, "min_evaluate_nodes": 0, "metric": "loss"}
    strategy = strategy_of(
        criterion=NeverSplit(), observers=[RoundProgress(said.append)], **settings
    )
    strategy.start(Quadratics((0,) * 8).grid(), initial_arrays(), num_rounds=2)
    (first,) = [text for text in said if text.startswith("Round 1/2")]
    assert " of 4 of 8 clients," in first
