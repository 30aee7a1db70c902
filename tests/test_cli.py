"""`cflower` as its user starts it: output, files, errors and exit status."""

import json
from pathlib import Path

import pytest

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
    for column in ("fl", "leaf", "best", "ensemble"):
        assert f"{summary[f'{column}_accuracy']:.4f}" in row
    assert printed.rstrip().endswith(f"Run folder: {run}")


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
        assert {"round", "cluster", "children", "alpha_cross", "mean_norm", "max_norm"} == set(
            split
        )
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
        (["-c", "learning-rate=fast"], "Cannot read -c"),
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
