"""`cflower try`: every method on the same clients, each with as many trainings."""

import json
import re
from pathlib import Path

import pytest

from cflower.cli.methods import Methods
from cflower.runs.answer import advice
from cflower.runs.record import RunRecord
from tests.cli.apps import SERVER, flower_app
from tests.command import PROJECT, cflower, error_of, in_new_process, output_of
from tests.runs.folders import edited, made_up_run, with_personal_step

MEASURED = '{"num-examples": 40, "accuracy": 1 - abs(message.content["arrays"]["w"].numpy()[0] - '
MEASURED += 'context.node_config["partition-id"]) / 10}'
"""The less the model is what a client wants, the worse."""


@pytest.fixture(autouse=True)
def a_path_of_its_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


def tried(app: Path, tmp_path: Path, *options: object) -> dict[str, object]:
    """The methods of a `cflower try` by key, as it prints them for programs."""
    out = output_of("try", app, "--out", tmp_path / "runs", "--json", *options)
    content = json.loads(out)
    return {"advice": content["advice"], **{one["key"]: one for one in content["methods"]}}


@pytest.mark.slow
def test_an_app_without_cflower_is_tried_with_every_method(tmp_path):
    app = flower_app(tmp_path, "tried", measures=MEASURED)
    result = tried(app, tmp_path, "-c", "num-server-rounds=10")
    assert list(result) == ["advice", "isolated", "federated", "tuned", "clustered", "own"]
    # Each client wants another number, and goes there at once.
    assert result["isolated"]["mean"] == result["tuned"]["mean"] == 1
    assert result["federated"]["mean"] == pytest.approx(0.75)
    assert {one["trainings"] for key, one in result.items() if key != "advice"} >= {10}
    assert result["isolated"]["num_bytes"] == 0
    assert 0 < result["tuned"]["num_bytes"] < result["federated"]["num_bytes"]
    assert result["advice"].startswith("Use each client alone (no federation is needed): ")
    assert not (tmp_path / "here.txt").exists()  # what the ServerApp does after a run is left out
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "report.html").is_file()
    assert "conventional FL, then alone" in output_of("show", run)


SUBCLASS = """\
from cflower import ClusteredFL

class Mine(ClusteredFL):
    def __init__(self, decay):
        super().__init__()
        self.decay = decay

    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = self.decay**server_round
        return super().configure_train(server_round, arrays, config, grid)

"""
SAYS_LR = """assert 0 < message.content["config"]["lr"] <= 0.9"""


@pytest.mark.slow
def test_a_strategy_with_an_init_of_its_own_is_tried_with_every_method(tmp_path):
    server = SERVER.replace("app = ServerApp()", SUBCLASS + "app = ServerApp()")
    server = server.replace("FedAvg().start(", "Mine(0.9).start(")
    app = flower_app(tmp_path, "sub", server=server, measures=MEASURED, before_training=SAYS_LR)
    result = tried(app, tmp_path, "--clients", 4, "-c", "num-server-rounds=10")
    assert list(result) == ["advice", "isolated", "federated", "tuned", "clustered", "own"]
    assert {one["trainings"] for key, one in result.items() if key != "advice"} >= {10}


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2, 12, 24, 40])
def test_every_method_has_the_same_number_of_trainings(rounds, tmp_path):
    app = flower_app(tmp_path, f"rounds{rounds}", measures=MEASURED)
    result = tried(app, tmp_path, "--clients", 4, "-c", f"num-server-rounds={rounds}")
    del result["advice"]
    assert ("clustered" in result) is (rounds > 8)  # else there is no time for a personal step
    for key, one in result.items():
        # A personal step may end after its first training, and Algorithm 4 asks for further ones.
        assert one["trainings"] == pytest.approx(rounds, abs=0.12 * rounds), key


@pytest.mark.slow
def test_an_interrupted_try_goes_on_with_the_same_result(tmp_path, monkeypatch):
    app = flower_app(tmp_path, "broken", measures=MEASURED)
    whole = tried(app, tmp_path, "--clients", 4)
    train, started = Methods._train, []

    def third(self, strategy, rounds, observers=()):
        started.append(strategy)
        if len(started) == 3:
            raise KeyboardInterrupt
        return train(self, strategy, rounds, observers)

    monkeypatch.setattr(Methods, "_train", third)
    status, _, err = cflower("try", app, "--out", tmp_path / "runs", "--clients", 4)
    assert status == 130
    run = err.split("add --resume ")[1].split(".")[0]
    assert RunRecord(tmp_path / "runs" / run).summary.baselines["isolated"] is None
    again = tried(app, tmp_path, "--clients", 4, "--resume", run)
    assert len(started) == 3 + 2  # the final evaluation of the clusters, and what was missing
    assert again == whole


@pytest.mark.parametrize(
    ("server", "says"),
    [
        (SERVER.replace("FedAvg().start(", "(lambda *a, **k: 1 / 0)("), "ZeroDivisionError"),
        (
            SERVER.replace("result = FedAvg", "return\n    result = FedAvg"),
            "The ServerApp calls no `start` of a Flower strategy",
        ),
        (
            SERVER.replace(
                "FedAvg()", "DifferentialPrivacyClientSideFixedClipping(FedAvg(), 1, 1, 5)"
            ).replace("import FedAvg", "import FedAvg, DifferentialPrivacyClientSideFixedClipping"),
            "starts DifferentialPrivacyClientSideFixedClipping, but expected ClusteredFL, FedAvg",
        ),
    ],
)
def test_an_app_that_cannot_be_tried_says_why(server, says, tmp_path):
    app = flower_app(tmp_path, f"odd{abs(hash(says))}", server=server, measures=MEASURED)
    if says == "ZeroDivisionError":
        with pytest.raises(ZeroDivisionError):
            cflower("try", app, "--out", tmp_path / "runs")
    else:
        status, _, err = cflower("try", app, "--out", tmp_path / "runs")
        assert status == 1 and err.startswith("Error: ") and says in err


def test_keys_that_try_sets_itself_are_refused():
    assert "Got the key baselines, but `cflower try`" in error_of("try", "-c", "baselines=true")


def test_cflowers_own_app_is_tried_by_its_config(tmp_path):
    config = "num-server-rounds=2 dataset-size=400 model='linear' shift='label-swap'"
    out = output_of("try", "-c", config, "--clients", 4, "--out", tmp_path)
    assert "Method 4 of 4: conventional FL, then alone" not in out  # too few rounds
    assert "each client alone" in out
    assert re.search(r"\n(Use |No method is shown )", out.replace("\n\n", "\n"))


@pytest.mark.slow
def test_methods_of_the_literature_are_tried_too_in_cflowers_own_app(tmp_path):
    config = "num-server-rounds=4 dataset-size=400 model='linear' shift='label-swap'"
    options = (
        "--clients",
        4,
        "--also",
        "fedprox, scaffold, ditto, ifca",
        "--json",
        "--out",
        tmp_path / "runs",
    )
    content = json.loads(output_of("try", "-c", config, *options))
    trainings = {one["key"]: one["trainings"] for one in content["methods"]}
    assert (
        len({trainings[key] for key in ("fedprox", "scaffold", "ditto", "ifca", "federated")}) == 1
    )
    wrong = error_of("try", "-c", config, "--clients", 4, "--also", "fedavg")
    assert "fedavg" in wrong
    assert "fedprox" in wrong
    began = sorted((tmp_path / "runs").iterdir())
    without = error_of(
        "try", "-c", config, "--clients", 4, "--also", "fedbn", "--out", tmp_path / "runs"
    )
    assert "normalisation layers" in without
    assert sorted((tmp_path / "runs").iterdir()) == began
    other = error_of("try", PROJECT / "examples" / "sklearn", "--also", "ditto")
    assert "another app" in other


@pytest.mark.slow
def test_the_report_is_there_where_clusters_share_no_class_or_it_is_not_named(
    tmp_path, monkeypatch
):
    config = "num-server-rounds=10 dataset-size=600 model='linear' shift='label-subset' "
    config += "num-groups=2 missing-labels='0,1,2,3,4;5,6,7,8,9'"
    options = "-c", config, "--clients", 10, "--out", tmp_path
    report = output_of("try", *options).split("Report: ")[1].strip()
    assert Path(report).is_file()
    assert "2 clusters" in output_of("show", Path(report).parent)
    monkeypatch.setattr("cflower.recording.recorder.write_report", lambda run: 1 / 0)
    out = output_of("try", *options)
    assert "No report was written: `cflower report " in out
    assert "Report: " not in out


@pytest.mark.slow
def test_the_advice_is_the_simplest_method_that_none_beats(tmp_path):
    values = {"federated": 0.5, "isolated": 0.2, "tuned": 0.6, "clustered": 0.9}
    run = RunRecord(with_personal_step(made_up_run(tmp_path / "a", clients=40, baselines=values)))
    assert [one.key for one in run.ways.methods] == [
        *("isolated", "federated", "tuned", "clustered", "own")
    ]
    assert advice(run.ways).startswith("Use clusters, then personal (with ClusteredFL): ")
    assert "against conventional FL; 40 clients better, 0 worse." in advice(run.ways)
    run = RunRecord(made_up_run(tmp_path / "b", clients=40, baselines={"federated": 0.92}))
    assert advice(run.ways).startswith("Use conventional FL (with FedAvg): accuracy 92.0%")
    run = RunRecord(made_up_run(tmp_path / "e", clients=40, baselines={"federated": 0.9195}))
    with edited(run.path / "summary.json") as summary:
        for number, name in enumerate(summary["clients"]):
            summary["baselines"]["federated"]["clients"][name] += 0.1 * (-1) ** number
    text = advice(RunRecord(run.path).ways)
    assert "it is simpler, and the better mean of " in text
    assert advice(RunRecord(made_up_run(tmp_path / "c")).ways) == ""
    few = RunRecord(made_up_run(tmp_path / "d", clients=2, baselines=values))
    with edited(few.path / "summary.json") as summary:
        for client in summary["clients"].values():
            client["held_out"] = 1
    assert "too few clients or held-out examples" in advice(few.ways)


def test_a_method_with_a_worse_mean_than_a_simpler_one_is_not_advised(tmp_path):
    values = {"isolated": 0.5, "tuned": 0.4}
    run = RunRecord(made_up_run(tmp_path, clients=40, baselines=values))
    with edited(run.path / "summary.json") as summary:
        for number, name in enumerate(summary["clients"]):  # so uneven that nobody beats it
            summary["baselines"]["tuned"]["clients"][name] += 5 * (-1) ** number
    assert advice(RunRecord(run.path).ways).startswith("Use clusters ")


@pytest.mark.slow
def test_the_real_command_tries_an_example_of_another_framework(tmp_path):
    pytest.importorskip("sklearn")
    example = PROJECT / "examples/sklearn"
    out = in_new_process(
        "from cflower.cli import main; main()",
        *("try", str(example), "--out", str(tmp_path), "-c", "num-server-rounds=24"),
    )
    assert "Method 5 of 5: clusters only" in out
    table = out[out.index("rmse (lower is better) of the clients by method") :]
    figures = re.findall(r"^ (\S[\w, ]+?) +(\d\.\d+)\*? ", table, re.MULTILINE)
    means = {words.strip(): float(mean) for words, mean in figures}
    assert means["clusters only"] < means["each client alone"] < means["conventional FL"]
    assert "\nNo method is shown to be better than each client alone: " in table
    assert len(list(tmp_path.iterdir())) == 1
