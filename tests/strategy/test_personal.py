"""The personal step in whole runs: messages, the run folder, resume, and where it is off."""

import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from safetensors.numpy import load_file

from cflower import NeverSplit, Recorder
from cflower.errors import FederationError, RunFolderError
from cflower.exporting.export import export
from cflower.runs.findings import finding
from cflower.runs.record import RunRecord
from cflower.runs.records import Summary
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid
from tests.strategy.quadratics import CENTERS, Quadratics, fails_in, initial_arrays, strategy_of

DIFFERENT = (0, 1, 2, 3) * 2


ROUNDS = 40
"""Of a run that is long enough for ten trainings."""


def run(clients, tmp_path, num_rounds=ROUNDS, resume="", first=0, **settings):
    """The strategy after a run in which nothing is split, and its recorder."""
    recorder = Recorder(tmp_path, resume=resume)
    settings = {"personal": True, "metric": "loss", "fraction_evaluate": 0.0} | settings
    strategy = strategy_of(criterion=NeverSplit(), observers=[recorder], **settings)
    arrays = ArrayRecord({k: Array(a.numpy() + first) for k, a in initial_arrays().items()})
    strategy.start(clients.grid(), arrays, num_rounds=num_rounds)
    return strategy, recorder


def counted(clients, kind, client=3):
    return sum(seen.kind == kind and seen.client == client for seen in clients.seen)


@pytest.mark.slow
@pytest.mark.parametrize("adapts", [False, True])
def test_every_client_is_served_by_the_file_that_the_summary_names(tmp_path, adapts):
    clients = Quadratics(DIFFERENT, adapts=adapts)
    strategy, recorder = run(clients, tmp_path)
    summary = json.loads((recorder.path / "summary.json").read_text())
    step = summary["personal"]["0"]
    assert (step["accepted"], step["kappa"], step["clients"]) == (True, pytest.approx(1.35), 8)
    for name, client in summary["clients"].items():
        served = client["served_by"]
        size = 10 + int(name[-1])
        assert (served["model"], served["cluster"]) == ("personal", "0")
        assert served["share"] == pytest.approx(size / (size + 1.35))
        vector = RunRecord(recorder.path).own_model(served["file"], "0").trained
        center = CENTERS[DIFFERENT[int(name[-1])]]
        assert client["loss"] == pytest.approx(np.linalg.norm(vector - center), rel=1e-4)
        assert client["loss"] < 0.2 * client["leaf_loss"]
    counts = summary["clients"]["partition-3"]
    assert counts["trainings"] == ROUNDS + step["trainings"]
    assert step["length"] == step["trainings"] == (10 if adapts else 9)  # of 12
    if not adapts:
        assert counts["trainings"] == counted(clients, "train")
        assert counts["evaluations"] == counted(clients, "evaluate")
    assert "8 clients of 1 cluster have models of their own" in finding(Summary(**summary))
    assert summary["fairness"]["own"]["worst_tenth"] < summary["fairness"]["leaf"]["worst_tenth"]
    file = export(recorder.path, client="partition-3", output=tmp_path / "own.safetensors")
    served = strategy.model_of("partition-3")["b"].numpy()
    np.testing.assert_array_equal(load_file(file)["b"], served)
    assert "for partition-3 alone: 91%" in (tmp_path / "own.safetensors.md").read_text()
    whole = export(recorder.path, cluster="0", output=tmp_path / "all.safetensors")
    root = strategy.tree.root.model
    np.testing.assert_array_equal(load_file(whole)["w"].ravel(), root.trained[:12])


def test_results_are_what_their_names_say(tmp_path):
    clients, strategy = (
        Quadratics(DIFFERENT),
        strategy_of(criterion=NeverSplit(), personal=True, metric="loss", fraction_evaluate=1.0),
    )
    result = strategy.start(clients.grid(), initial_arrays(), num_rounds=ROUNDS)

    def loss_of(arrays, name):
        vector = np.concatenate([arrays[key].numpy().ravel() for key in ("w", "b")])
        return np.linalg.norm(vector - CENTERS[DIFFERENT[int(name[-1])]])

    names = strategy.tree.clients
    common = np.mean([loss_of(strategy.models["0"], name) for name in names])
    own = np.mean([loss_of(strategy.model_of(name), name) for name in names])
    assert own < 0.1 * common
    assert result.cluster_metrics["0"]["loss"] == pytest.approx(common, rel=1e-3)
    assert result.evaluate_metrics_clientapp[ROUNDS]["loss"] == pytest.approx(common, rel=1e-3)
    assert result.served_metrics["0"]["loss"] == pytest.approx(own, abs=1e-3)
    assert f"loss {common:.4g}"[:8] in repr(result)
    assert f"; as they are served: loss {own:.2g}"[:28] in repr(result)
    with pytest.raises(FederationError, match="No client is 'nobody'"):
        strategy.model_of("nobody")


@pytest.mark.slow
def test_a_run_that_goes_on_ends_with_a_new_personal_step(tmp_path):
    _, whole = run(Quadratics(DIFFERENT), tmp_path / "whole", num_rounds=30)
    _, part = run(Quadratics(DIFFERENT), tmp_path / "part", num_rounds=24)
    again = run(Quadratics(DIFFERENT), tmp_path / "part", num_rounds=24, resume=part.path.name)[1]
    assert again.summary == part.summary
    # An app's first model need not be the same in the process that goes on.
    more = {"num_rounds": 30, "resume": part.path.name, "first": 9}
    resumed = run(Quadratics(DIFFERENT), tmp_path / "part", **more)[1]
    assert {**resumed.summary, "run_id": ""} == {**whole.summary, "run_id": ""}
    for name in ("partition-0", "partition-7"):
        file = whole.summary["clients"][name]["served_by"]["file"]
        one, other = ((r.path / file).read_bytes() for r in (whole, resumed))
        assert one == other


def test_a_resumed_run_has_as_many_clients_as_before(tmp_path):
    _, part = run(Quadratics(DIFFERENT), tmp_path, num_rounds=2)
    with pytest.raises(RunFolderError, match="with 9 simulated clients: it had 8"):
        run(Quadratics((*DIFFERENT, 0)), tmp_path, num_rounds=3, resume=part.path.name)


def test_clients_that_are_alike_are_served_by_their_leaf(tmp_path):
    _, recorder = run(Quadratics((0,) * 6, noise=0.0), tmp_path)
    assert not recorder.summary["personal"]["0"]["accepted"]
    assert not (recorder.path / "personal").exists()
    served = recorder.summary["clients"]["partition-0"]["served_by"]
    assert (served["model"], served["file"]) == ("leaf", "models/0.safetensors")


class Silent(InlineGrid):
    """The first node answers nothing in the personal step."""

    lost = 0

    def push_messages(self, messages):
        for message_id in super().push_messages(messages):
            message = self._pending[message_id]
            late = dict(message.content.get("config", {})).get("server-round", 0) > ROUNDS
            if late and message.metadata.dst_node_id == FIRST_NODE_ID:
                self.lost += 1
                del self._pending[message_id]
            yield message_id


@pytest.mark.slow
def test_a_silent_client_is_waited_for_once():
    grid = Silent(Quadratics(DIFFERENT).app(), len(DIFFERENT), {})
    strategy = strategy_of(criterion=NeverSplit(), personal=True, metric="loss")
    strategy.start(grid, initial_arrays(), ROUNDS, timeout=0.2)
    assert grid.lost == 1
    assert len(strategy.state.personal["0"].models) == len(DIFFERENT) - 1


def test_a_client_that_stops_answering_keeps_its_leafs_model(tmp_path):
    _, recorder = run(Quadratics(DIFFERENT, spoil={2: fails_in(*range(ROUNDS + 3, 99))}), tmp_path)
    kinds = {c: line["served_by"]["model"] for c, line in recorder.summary["clients"].items()}
    assert kinds.pop("partition-2") in ("leaf", "personal")
    assert set(kinds.values()) == {"personal"}


@pytest.mark.parametrize(("adapts", "rounds"), [(True, 3), (True, 4), (False, 7), (False, 8)])
def test_short_runs_have_no_personal_step_and_the_log_says_why(tmp_path, caplog, adapts, rounds):
    caplog.set_level("INFO", "flwr")
    strategy, _ = run(Quadratics(DIFFERENT, adapts=adapts), tmp_path, rounds)
    why = f"a client trains in {rounds} rounds on average, too few for one"
    short = f"There will be no personal step: {why}."
    assert (short in caplog.text) == (rounds in (3, 7)) == (not strategy.state.personal)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [5, 10, 24, 60])
@pytest.mark.parametrize("adapts", [True, False])
def test_the_step_adds_three_tenths_of_the_runs_trainings_and_models_at_most(
    tmp_path, adapts, rounds
):
    clients = Quadratics(DIFFERENT, adapts=adapts)
    strategy, _ = run(clients, tmp_path, rounds)
    steps = strategy.state.personal.values()
    trainings = sum(step.trainings for step in steps)
    assert trainings <= 0.3 * rounds
    if adapts:
        assert counted(clients, "adapt") == (1 if trainings == 1 else 2)
        assert counted(clients, "train") == rounds
    else:
        trained = counted(clients, "train") - rounds
        evaluated = counted(clients, "evaluate") - 1  # the final evaluation, by two models
        assert 2 * trained + evaluated <= 0.3 * (2 * rounds + 1)
        assert trained == trainings


def test_one_client_whose_app_cannot_do_the_step_alone_makes_it_one_of_messages(tmp_path):
    class Some(Quadratics):
        def _answer(self, message, context):
            self.adapts = context.node_config["partition-id"] != 3
            return super()._answer(message, context)

    clients = Some(DIFFERENT, adapts=True)
    strategy, _ = run(clients, tmp_path)
    assert counted(clients, "adapt", 0) == 0
    assert counted(clients, "train", 0) == ROUNDS + strategy.state.personal["0"].trainings
