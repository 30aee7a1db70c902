"""`cflower` as its user starts it: output, files, errors and exit status."""

import json
import shlex
import shutil

import pytest

import cflower as package
from cflower.cli.apps import usual_workers
from cflower.config import RunConfig
from cflower.recording.progress import RoundProgress
from cflower.runs.records import Config
from tests.command import cflower, error_of, output_of, simulated, started_simulation
from tests.run_content import content_of

QUICK = (
    "num-server-rounds=3 min-available-nodes=4 dataset-size=300 local-epochs=1 "
    "split-criterion='norms' eps1=5.0 eps2=0.1 gamma-max=0.0 min-cluster-size=1"
)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    printed = output_of("simulate", "-c", QUICK, "--out", out)
    (run,) = out.iterdir()
    return run, printed


@pytest.mark.slow
def test_a_run_whose_output_nobody_reads_any_more_is_recorded_whole(quick, tmp_path):
    process = started_simulation(tmp_path, QUICK)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(300) == 0
    (run,) = tmp_path.iterdir()
    assert (run / "report.html").exists()
    assert content_of(run) == content_of(quick[0])


def test_simulate_prints_rounds_tree_table_and_folder(quick):
    run, printed = quick
    assert "Round 3/3" in printed
    assert "cluster 0: 4 clients, split in round 1" in printed
    assert "client × model" in printed
    (row,) = [line for line in printed.splitlines() if line.split()[:1] == ["partition-3"]]
    summary = json.loads((run / "summary.json").read_text())["clients"]["partition-3"]
    for column in ("fl", "leaf"):
        assert f"{summary[f'{column}_accuracy']:.1%}" in row
    assert printed.count(f"Run folder: {run}\n") == 1
    assert f"Report: {run / 'report.html'}\nNext: cflower report {run} --open (or" in printed
    assert "0 s left" not in printed


def test_the_run_folder_keeps_its_contract(quick):
    run, _ = quick
    summary = json.loads((run / "summary.json").read_text())
    clients = {f"partition-{i}" for i in range(4)}
    assert summary["run_id"] == run.name
    assert summary["finished"] is True
    assert summary["rounds"] == 3
    assert {name for members in summary["clusters"].values() for name in members} == clients
    assert set(summary["groups"]) == set(summary["clients"]) == clients
    for split in summary["splits"]:
        keys = {"round", "cluster", "children", "alpha_cross", "mean_norm", "max_norm"}
        assert keys | {"trial", "verdict"} == set(split)
    assert {"accuracy", "fl_accuracy"} <= set(summary["metrics"])
    columns = ("accuracy", *(f"{column}_accuracy" for column in ("leaf", "best", "ensemble")))
    for client in summary["clients"].values():
        assert {"cluster", "num_examples", "loss"} <= set(client)
        steps = client["cluster"].split(".")
        way = [".".join(steps[: i + 1]) for i in range(len(steps))]
        assert list(client["levels"]) == way
        assert client["best_cluster"] in way
        assert client["levels"]["0"] == client["fl_accuracy"]
        assert client["levels"][way[-1]] == client["leaf_accuracy"] == client["accuracy"]
        assert all(0 <= client[column] <= 1 for column in columns)
    assert any(len(client["levels"]) > 1 for client in summary["clients"].values())
    begun = json.loads((run / "config.json").read_text())
    assert set(begun) == {*Config.model_fields} - {"permutation"}
    assert begun["settings"]["criterion"]["name"] == "norms"
    assert summary["metric"] == {"name": "accuracy", "higher_is_better": True}
    lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert lines[0]["round"] == 1
    assert lines[0]["decision"] == "split"
    tree = json.loads((run / "tree.json").read_text())["clusters"]
    for name, cluster in tree.items():
        assert (run / f"models/{name}.safetensors").is_file()
        matrix = run / f"similarity/{cluster['split_round']}-{name}.npz"
        assert matrix.is_file() or not cluster["children"]
    assert not [path for path in run.rglob("*") if path.suffix in (".tmp", ".pkl", ".pt")]


@pytest.mark.slow
def test_baselines_are_the_runs_that_they_name(quick, tmp_path):
    run, _ = quick
    folder = shutil.copytree(run, tmp_path / run.name)
    printed = " ".join(output_of("simulate", "--baselines", "-c", f"resume='{folder}'").split())
    assert "conventional FL: measured next" in printed
    summary = json.loads((folder / "summary.json").read_text())
    for name in ("federated", "isolated"):
        other = simulated(tmp_path / name, f"{QUICK} method='{name}' max-influence=0")
        alone = json.loads((other / "summary.json").read_text())
        measured = summary["baselines"][name]
        assert measured["accuracy"] == alone["metrics"]["accuracy"]
        assert measured["clients"] == {n: c["accuracy"] for n, c in alone["clients"].items()}
        assert measured["rounds"] == 3
        figures = output_of("compare", folder, other, "--json", "--runs", tmp_path)
        (pair,) = json.loads(figures)["pairs"]
        assert all(measured[key] == pair[key] for key in pair.keys() & measured.keys())
        assert "verdict" in measured
        counts = f" better, {measured['worse']} worse: {measured['verdict']}"
        assert counts in printed
    assert "each client alone: " in output_of("show", folder)


def test_the_same_command_gives_the_same_summary(quick, tmp_path):
    run, _ = quick
    again = simulated(tmp_path, QUICK)
    assert run.name != again.name
    assert content_of(again) == content_of(run)


def test_the_command_printed_after_ctrl_c_completes_the_same_run(quick, tmp_path, monkeypatch):
    run, _ = quick
    with monkeypatch.context() as patch:
        patch.setattr(RoundProgress, "on_round", interrupt_after_round_1)
        stopped = cflower("simulate", "-c", QUICK, "--clients", 4, "--out", tmp_path)
    assert stopped.returncode == 130
    (folder,) = tmp_path.iterdir()
    command = f"cflower simulate --clients 4 -c \"resume='{folder}'\""
    assert stopped.stderr.rstrip().endswith(f"to go on: {command}")
    assert not json.loads((folder / "summary.json").read_text())["finished"]

    resumed = output_of(*shlex.split(command)[1:])
    assert "Round 2/3" in resumed and "Round 1/3" not in resumed
    assert list(tmp_path.iterdir()) == [folder]
    assert content_of(folder) == content_of(run)


def interrupt_after_round_1(progress, report):
    assert report.server_round == 1
    raise KeyboardInterrupt


def test_ctrl_c_before_the_run_folder_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("cflower.simulation.inline_grid.InlineGrid.push_messages", interrupt)
    stopped = cflower("simulate", "-c", QUICK, "--out", tmp_path)
    assert stopped.returncode == 130
    assert "Interrupted before there was anything to resume." in stopped.stderr
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_with_more_rounds_but_not_with_another_model(quick, tmp_path):
    run, _ = quick
    folder = shutil.copytree(run, tmp_path / run.name)
    go_on = f"resume='{run.name[:15]}' num-server-rounds=4"
    printed = output_of("simulate", "-c", go_on, "--out", tmp_path)
    assert "Round 4/4" in printed and "Round 3/4" not in printed
    before = content_of(folder)
    refused = error_of("simulate", "-c", f"{go_on} model='mlp' seed=7", "--out", tmp_path)
    assert "model was 'cnn' and is 'mlp'" in refused and "seed was 0 and is 7" in refused
    assert "eps1" not in refused
    assert content_of(folder) == before


def test_keys_lists_every_key_with_its_default_and_what_it_may_be():
    listed = output_of("keys")
    for key, default in RunConfig().as_keys().items():
        (line,) = [line for line in listed.splitlines() if line.startswith(f" {key} ")]
        assert repr(default) in line
    assert '"clustered"; baselines: "federated"' in listed
    rows = json.loads(output_of("keys", "--json"))
    assert {row["key"]: row["default"] for row in rows} == RunConfig().as_keys()


def test_version_and_misspelt_commands():
    assert cflower("--version")[:2] == (0, f"cflower {package.__version__}\n")
    status, _, err = cflower("simualte")
    assert status == 2
    assert err.count("Did you mean 'simulate'?") == 1


def test_show_prints_the_newest_run_and_any_by_the_beginning_of_its_id(quick):
    run, _ = quick
    newest = output_of("show", "--runs", run.parent)
    assert newest == output_of("show", run.name[:8], "--runs", run.parent)
    assert "partition-3" in newest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-c", "method=federated"], "put texts in quotes: method='federated'."),
        (["-c", "seed=1 method='federated"], "put texts in quotes: method='federated'."),
        (["-c", "moving=False"], "write it in lower case: moving=false."),
        (["-c", "own.toml", "-c", "seed=1"], "own.toml with others: a file has to be the only one"),
        (["-c", "learning-rate=inf"], "Got learning-rate=inf, but expected a number > 0."),
        (["-c", "seed = 5"], "Cannot read 'seed = 5' in -c 'seed = 5': expected key=value"),
        (["-c", "tracker='comet'"], 'It can be "", tensorboard, wandb or mlflow.'),
        (["-c", "nosuch.toml"], "There is no file 'nosuch.toml'."),
        (["-c", "dataset='/no/such/folder'"], "is no folder"),
        (["-c", "dataset='{folder}'"], "its columns are height, width"),
        (["-c", "model='resnet'"], "model = 'resnet' is not known"),
        (["-c", "num-groups=20"], "num-groups = 20 does not fit 10 clients"),
        (["-c", "resume='nosuch'"], "There is no run in"),
        (["--clients", "2", "-c", "min-available-nodes=3"], "wait for more than there are"),
        (["--clients", "40", "-c", "dataset-size=30"], "30 examples cannot be dealt out to 40"),
        (["--baselines", "-c", "method='federated'"], "baselines=true with method='federated'"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing_behind(arguments, says, tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.csv").write_text("height,width\n1.0,2.0\n3.0,4.0\n")
    arguments = [text.replace("{folder}", str(tmp_path / "rows")) for text in arguments]
    failed = cflower("simulate", *arguments, "--out", tmp_path / "out")
    assert failed.returncode == 1
    assert says in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("clients", "config", "expected"),
    [
        (20, RunConfig(num_server_rounds=30), 4),
        (20, RunConfig(num_server_rounds=30, model="mlp"), 0),
        (10, RunConfig(num_server_rounds=30), 0),
        (10, RunConfig(num_server_rounds=30, baselines=True), 2),
        (50, RunConfig(num_server_rounds=1), 8),
        (9, RunConfig(num_server_rounds=900), 0),
    ],
)
def test_a_run_with_many_clients_or_trainings_has_a_worker_for_each_core_and_five_clients(
    monkeypatch, clients, config, expected
):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert usual_workers(config, clients) == expected
    monkeypatch.setattr("multiprocessing.get_all_start_methods", lambda: ["spawn"])
    assert usual_workers(config, clients) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("model", "clients"), [("cnn", 6), ("mlp", 21)])
def test_the_number_of_workers_changes_nothing(tmp_path, model, clients):
    config, runs = f"num-server-rounds=6 dataset-size=600 model='{model}'", []
    for workers in (0, 1, 2):
        args = "--clients", clients, "--workers", workers
        runs.append(simulated(tmp_path / str(workers), config, *args))
    assert content_of(runs[0]) == content_of(runs[1]) == content_of(runs[2])


def test_rows_of_several_files_are_not_mixed_without_a_word(tmp_path, caplog):
    (tmp_path / "sites").mkdir()
    for site in "ab":
        rows = "".join(f"{n},{n % 2}\n" for n in range(30))
        (tmp_path / "sites" / f"{site}.csv").write_text(f"x,label\n{rows}")
    keys = f"dataset='{tmp_path}/sites' shift='none' model='linear' num-server-rounds=1"
    ways = ("--clients", 2, "--out", tmp_path / "runs")
    output_of("simulate", "-c", keys, *ways)
    assert caplog.text.count("natural-id-column='file'") == 1
    caplog.clear()
    by_file = f"{keys} partitioner='natural-id' natural-id-column='file'"
    done = cflower("simulate", "-c", by_file, *ways)
    assert "natural-id-column='file'" not in caplog.text
    assert (done.returncode, done.stderr) == (0, "")  # no progress bar of a library


def test_a_problem_of_all_clients_is_said_once(tmp_path, caplog):
    done = cflower("simulate", "-c", "label-column='kind'", "--out", tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("'kind'") == 1
    assert "cannot take part" not in caplog.text
