"""`cflower` as its user starts it: output, files, errors and exit status."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

import cflower as package
from cflower.config import RunConfig
from cflower.recording.progress import RoundProgress
from cflower.strategy.reports import RoundReport
from tests.command import cflower

QUICK = (
    "num-server-rounds=3 min-available-nodes=4 dataset-size=300 local-epochs=1 "
    "split-criterion='norms' eps1=5.0 eps2=0.1 gamma-max=0.0 min-cluster-size=1"
)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("runs")
    done = cflower("simulate", "-c", QUICK, "--out", str(out))
    assert done.returncode == 0, done.stderr
    (run,) = out.iterdir()
    return run, done.stdout


def test_simulate_tells_rounds_tree_table_and_folder(simulated: tuple[Path, str]) -> None:
    run, printed = simulated
    assert "Round 3/3" in printed
    assert "cluster 0: 4 clients, split in round 1" in printed
    assert "client × model" in printed
    (row,) = [line for line in printed.splitlines() if line.split()[:1] == ["partition-3"]]
    summary = json.loads((run / "summary.json").read_text())["clients"]["partition-3"]
    for column in ("fl", "leaf"):
        assert f"{summary[f'{column}_accuracy']:.1%}" in row
    assert f"Run folder: {run}\nNext: cflower report {run} --open (or" in printed


def test_the_run_folder_keeps_its_contract(simulated: tuple[Path, str]) -> None:
    run, _ = simulated
    summary = json.loads((run / "summary.json").read_text())
    clients = {f"partition-{i}" for i in range(4)}
    assert summary["run_id"] == run.name
    assert summary["finished"] is True
    assert summary["rounds"] == 3
    assert {name for members in summary["clusters"].values() for name in members} == clients
    assert set(summary["groups"]) == set(summary["clients"]) == clients
    for client in summary["clients"].values():
        assert {"cluster", "num_examples", "accuracy", "loss", "fl_accuracy"} <= set(client)
    for split in summary["splits"]:
        keys = {"round", "cluster", "children", "alpha_cross", "mean_norm", "max_norm"}
        assert keys | {"trial", "verdict"} == set(split)
    assert {"accuracy", "fl_accuracy"} <= set(summary["metrics"])
    columns = ("accuracy", *(f"{column}_accuracy" for column in ("leaf", "best", "ensemble")))
    for client in summary["clients"].values():
        steps = client["cluster"].split(".")
        way = [".".join(steps[: i + 1]) for i in range(len(steps))]
        assert list(client["levels"]) == way
        assert client["best_cluster"] in way
        assert client["levels"]["0"] == client["fl_accuracy"]
        assert client["levels"][way[-1]] == client["leaf_accuracy"] == client["accuracy"]
        assert all(0 <= client[column] <= 1 for column in columns)
    assert any(len(client["levels"]) > 1 for client in summary["clients"].values())
    begun = json.loads((run / "config.json").read_text())
    assert set(begun) == {"config", "settings", "arrays", "num_rounds", "versions", "seed"}
    assert begun["settings"]["criterion"]["name"] == "norms"
    assert summary["metric"] == {"name": "accuracy", "higher_is_better": True}
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert lines[0]["round"] == 1
    assert lines[0]["decision"] == "split"
    tree = json.loads((run / "tree.json").read_text())["clusters"]
    for name, cluster in tree.items():
        assert (run / f"models/{name}.safetensors").is_file()
        assert (run / f"edges/{name}.safetensors").is_file() == (name != "0")
        assert (
            not cluster["children"]
            or (run / f"similarity/{cluster['split_round']}-{name}.npz").is_file()
        )
    assert not [path for path in run.rglob("*") if path.suffix in (".tmp", ".pkl", ".pt")]


@pytest.mark.slow
def test_baselines_are_the_runs_that_they_name(simulated: tuple[Path, str], tmp_path: Path) -> None:
    run, _ = simulated
    folder = shutil.copytree(run, tmp_path / run.name)
    told = cflower("simulate", "--baselines", "-c", f"resume='{folder}'")
    assert told.returncode == 0, told.stderr
    assert "conventional FL for all rounds: measured next" in " ".join(told.stdout.split())
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("federated", "isolated"):
        config = f"{QUICK} method='{name}' max-influence=0"
        assert cflower("simulate", "-c", config, "--out", tmp_path / name).returncode == 0
        (other,) = (tmp_path / name).iterdir()
        alone = json.loads((other / "summary.json").read_text())
        measured = summary["baselines"][name]
        assert measured["accuracy"] == alone["metrics"]["accuracy"]
        assert measured["clients"] == {n: c["accuracy"] for n, c in alone["clients"].items()}
        assert measured["rounds"] == 3
        figures = cflower("compare", folder, other, "--json", "--runs", tmp_path)
        (pair,) = json.loads(figures.stdout)["pairs"]
        assert {key: measured[key] for key in pair if key in measured} == {
            key: value for key, value in pair.items() if key in measured
        }
        assert "verdict" in measured
        assert f"{measured['held_out']:.0f} held-out examples; {measured['better']} client" in (
            told.stdout
        )
    shown = cflower("show", folder)
    assert "each client alone for all rounds: " in shown.stdout


def test_baselines_of_a_baseline_are_refused() -> None:
    told = cflower("simulate", "--baselines", "-c", "method='federated'")
    assert told.returncode == 1
    assert "baselines=true with method='federated'" in told.stderr


def test_the_same_command_gives_the_same_summary(
    simulated: tuple[Path, str], tmp_path: Path
) -> None:
    run, _ = simulated
    assert cflower("simulate", "-c", QUICK, "--out", str(tmp_path)).returncode == 0
    (again,) = tmp_path.iterdir()
    first, second = (json.loads((path / "summary.json").read_text()) for path in (run, again))
    assert first.pop("run_id") != second.pop("run_id")
    assert first == second
    for model in (run / "models").iterdir():
        assert model.read_bytes() == (again / "models" / model.name).read_bytes()


def test_ctrl_c_says_how_to_go_on_and_what_it_says_gives_the_same_run(
    simulated: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = simulated
    with monkeypatch.context() as patch:
        patch.setattr(RoundProgress, "on_round", interrupt_after_round_1)
        stopped = cflower("simulate", "-c", QUICK, "--clients", 4, "--out", tmp_path)
    assert stopped.returncode == 130
    (folder,) = tmp_path.iterdir()
    command = f"cflower simulate --clients 4 -c \"resume='{folder}'\""
    assert stopped.stderr.rstrip().endswith(f"to go on: {command}")
    assert not json.loads((folder / "summary.json").read_text())["finished"]

    resumed = cflower(*shlex.split(command)[1:])
    assert resumed.returncode == 0, resumed.stderr
    assert "Round 2/3" in resumed.stdout
    assert "Round 1/3" not in resumed.stdout
    assert list(tmp_path.iterdir()) == [folder]
    whole, again = (json.loads((path / "summary.json").read_text()) for path in (run, folder))
    assert whole | {"run_id": ""} == again | {"run_id": ""}
    for model in (run / "models").iterdir():
        assert model.read_bytes() == (folder / "models" / model.name).read_bytes()


def interrupt_after_round_1(progress: RoundProgress, report: RoundReport) -> None:
    assert report.server_round == 1
    raise KeyboardInterrupt


def test_ctrl_c_before_the_run_folder_says_that_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cflower.simulation.inline_grid.InlineGrid.push_messages", interrupt)
    stopped = cflower("simulate", "-c", QUICK, "--out", tmp_path)
    assert stopped.returncode == 130
    assert "Interrupted before there was anything to resume." in stopped.stderr
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_with_more_rounds_but_not_with_another_model(
    simulated: tuple[Path, str], tmp_path: Path
) -> None:
    run, _ = simulated
    shutil.copytree(run, tmp_path / run.name)
    go_on = f"resume='{run.name[:15]}' num-server-rounds=4"
    done = cflower("simulate", "-c", go_on, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Round 4/4" in done.stdout
    assert "Round 3/4" not in done.stdout
    refused = cflower("simulate", "-c", f"{go_on} model='mlp'", "--out", tmp_path)
    assert refused.returncode == 1
    assert "model was 'cnn' and is 'mlp'" in refused.stderr


def test_keys_lists_every_key_with_its_default_and_what_it_may_be() -> None:
    done = cflower("keys")
    assert done.returncode == 0
    for key, default in RunConfig().as_keys().items():
        (line,) = [line for line in done.stdout.splitlines() if line.split()[:1] == [key]]
        assert repr(default) in line
    assert "'clustered', 'federated', 'isolated'" in done.stdout
    assert ">= 0 and < 1" in done.stdout


def test_version_and_misspelt_commands() -> None:
    assert cflower("--version")[:2] == (0, f"cflower {package.__version__}\n")
    status, _, err = cflower("simualte")
    assert status == 2
    assert err.count("Did you mean 'simulate'?") == 1


def test_show_prints_the_newest_run_and_any_by_the_beginning_of_its_id(
    simulated: tuple[Path, str],
) -> None:
    run, _ = simulated
    newest = cflower("show", "--runs", str(run.parent))
    named = cflower("show", run.name[:8], "--runs", str(run.parent))
    assert newest.returncode == 0
    assert newest.stdout == named.stdout
    assert "partition-3" in newest.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-c", "lerning-rate=0.1"], "did you mean 'learning-rate'?"),
        (["-c", "method=federated"], "put texts in quotes: method='federated'."),
        (["-c", "seed=1 method='federated"], "put texts in quotes: method='federated'."),
        (["-c", "seed = 5"], "Cannot read 'seed = 5' in -c 'seed = 5': expected key=value"),
        (["-c", "seed=1.5"], "Got seed=1.5 (float), but expected a whole number"),
        (["-c", "tracker='comet'"], 'It can be "", tensorboard, wandb or mlflow.'),
        (["-c", "nosuch.toml"], "There is no file 'nosuch.toml'."),
        (["-c", "dataset='/no/such/folder'"], "there is no such folder"),
        (["-c", "model='resnet'"], "model = 'resnet' is not known"),
        (["-c", "num-groups=20"], "num-groups = 20 does not fit 10 clients"),
        (["-c", "resume='nosuch'"], "There is no run in"),
        (["--clients", "2", "-c", "min-available-nodes=3"], "needs 3 SuperNodes"),
        (["--clients", "2000"], "examples"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(
    arguments: list[str], says: str, tmp_path: Path
) -> None:
    failed = cflower("simulate", *arguments, "--out", str(tmp_path / "out"))
    assert failed.returncode == 1
    assert says in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_without_labels_is_refused_in_words(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.csv").write_text("height,width\n1.0,2.0\n3.0,4.0\n")
    failed = cflower("simulate", "-c", f"dataset='{data}'", "--out", str(tmp_path / "out"))
    assert failed.returncode == 1
    assert "height" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_show_says_which_runs_there_are(simulated: tuple[Path, str]) -> None:
    run, _ = simulated
    failed = cflower("show", "1999", "--runs", str(run.parent))
    assert failed.returncode == 1
    assert run.name in failed.stderr


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing(tmp_path: Path) -> None:
    found = []
    for workers in (0, 2):
        out = tmp_path / str(workers)
        given = "num-server-rounds=6 dataset-size=600"
        status, _, err = cflower(
            "simulate", "--clients", 6, "--workers", workers, "--out", out, "-c", given
        )
        assert status == 0, err
        (lines,) = out.glob("*/rounds.jsonl")
        rounds = [json.loads(line) | {"seconds": 0} for line in lines.read_text().splitlines()]
        models = {path.name: path.read_bytes() for path in lines.parent.glob("models/*")}
        found.append((rounds, models))
    assert found[0] == found[1]
