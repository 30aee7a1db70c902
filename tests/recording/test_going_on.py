"""What a run that ended early, or cannot go on, says about going on."""

import pytest

from cflower import NeverSplit, Observer, Recorder
from cflower.errors import RunFolderError
from cflower.recording.progress import RoundProgress
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
