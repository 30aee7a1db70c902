"""A data owner's commands: assign and export, on a run with two levels of splits."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import cflower as package
from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.settings import DataSettings
from cflower.data.shifts import rotated
from cflower.data.sources import load_source
from cflower.errors import ConfigError, ExportError
from cflower.exporting.files import answers_of
from cflower.learning import build_model
from cflower.newcomers.assign import newcomers_update
from cflower.newcomers.pytorch_run import SavedRun
from tests.command import cflower
from tests.exporting.test_files import needs_onnx

pytestmark = pytest.mark.slow

IN_THE_RUN = 1200
RUN = (
    f"dataset-size={IN_THE_RUN} num-groups=4 num-server-rounds=8 projection-dim=2000 "
    "similarity-layers='conv*' split-criterion='norms' eps1=1.6 eps2=1.0 gamma-max=0.6 "
    "min-cluster-size=3"
)
"""Four groups, found two by two; updates compared by a projection of some of their layers."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    status, _, err = cflower("simulate", "--clients", 12, "-c", RUN, "--out", out)
    assert status == 0, err
    (folder,) = out.iterdir()
    assert json.loads((folder / "summary.json").read_text())["adjusted_rand_index"] == 1.0
    return folder


@pytest.fixture(scope="module")
def unseen() -> tuple[np.ndarray, np.ndarray]:
    """Digits that no client of the run has."""
    rest = load_source("digits", seed=0).take(np.arange(IN_THE_RUN, IN_THE_RUN + 150))
    return rest.examples().inputs, rest.labels


def own_folder(path: Path, inputs: np.ndarray, labels: np.ndarray) -> Path:
    path.mkdir()
    np.savez(path / "mine.npz", x=inputs, y=labels)
    return path


def test_a_newcomer_of_every_kind_comes_to_its_group(
    run: Path, unseen: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    summary = json.loads((run / "summary.json").read_text())
    inputs, labels = unseen
    for group in range(4):
        folder = own_folder(tmp_path / str(group), rotated(inputs, group, 4), labels)
        found = package.assign(run, folder)
        members = summary["clusters"][found.cluster]
        assert {summary["groups"][name] for name in members} == {group}
        assert found.stranger_at is None
        assert [level.cluster for level in found.levels] == ["0", found.cluster[:3], found.cluster]
        assert found.levels[-1].accuracy > found.levels[0].accuracy
        assert (found.num_train, found.num_held_out) == (120, 30)


def test_its_update_is_computed_and_compared_as_in_the_run(run: Path) -> None:
    saved = SavedRun.read(run)
    assert not saved.projection.keeps_all
    assert saved.projection.mask is not None
    for client, cluster, edge in [(0, "0", "0.0"), (9, "0.1", "0.1.1")]:
        name = f"partition-{client}"
        data = load_client_data(saved.own.part(DataSettings), client, 12)
        fork = saved.tree.clusters[cluster]
        update = newcomers_update(saved, data, str, fork, name=name)
        np.testing.assert_array_equal(update, saved.tree.clusters[edge].edge[name])


def test_assign_prints_the_way_down(
    run: Path, unseen: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    folder = own_folder(tmp_path / "mine", *unseen)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    status, out, _ = cflower("assign", run.name, "--data", folder, "--runs", run.parent)
    assert status == 0
    found = package.assign(run, folder)
    for level in found.levels:
        assert f"{level.accuracy:.4f}" in out
        for child, alpha in level.step.fork.similarities.items() if level.step else ():
            assert f"{child} {alpha:+.3f}" in out
    assert f"The newcomer belongs to cluster {found.cluster}" in out
    assert f"cflower export {run.name} --cluster {found.cluster}" in out
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}


def test_assign_for_programs_tells_the_same(
    run: Path, unseen: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    folder = own_folder(tmp_path / "mine", *unseen)
    status, out, _ = cflower("assign", run.name, "--data", folder, "--runs", run.parent, "--json")
    assert status == 0
    told, found = json.loads(out), package.assign(run, folder)
    assert told["cluster"] == found.cluster
    assert told["stranger"] is False
    assert [step["accuracy"] for step in told["path"]] == [lev.accuracy for lev in found.levels]
    assert list(told["path"][0]["similarities"]) == ["0.0", "0.1"]
    assert told["path"][0]["margin"] == found.levels[0].step.fork.margin
    assert "similarity" not in told["path"][-1]


def test_assign_says_when_the_newcomer_resembles_nobody(
    run: Path, unseen: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    inputs, labels = unseen
    noise = np.random.default_rng(0).permutation(labels)
    folder = own_folder(tmp_path / "noise", inputs, noise)
    status, out, _ = cflower("assign", run.name, "--data", folder, "--runs", run.parent)
    assert (status, "The newcomer resembles nobody at cluster 0" in out) == (0, True)


def inputs_only(path: Path, inputs: np.ndarray) -> Path:
    path.mkdir()
    np.savez(path / "mine.npz", x=inputs)
    return path


def test_a_newcomer_without_labels_comes_to_its_group_as_far_as_models_differ(
    run: Path, unseen: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    summary = json.loads((run / "summary.json").read_text())
    group_of = {
        leaf: {summary["groups"][name] for name in members}
        for leaf, members in summary["clusters"].items()
    }
    just_split = {
        f"{s['cluster']}.{i}" for s in summary["splits"] for i in (0, 1) if s["round"] == 8
    }
    outcomes = set()
    for group in range(4):
        folder = inputs_only(tmp_path / str(group), rotated(unseen[0], group, 4))
        found = package.assign_unlabelled(run, folder)
        assert found.num_examples == 150
        assert {group} in [group_of[leaf] for leaf in found.in_question]
        assert found.candidates[0].cluster in found.in_question
        if found.outcome == "placed":
            assert found.in_question == (found.cluster,)
            assert found.candidates[0].probability > 0.9
        else:  # split in the last round, so that both have the same model still
            assert found.outcome == "cannot be told without labels"
            assert set(found.in_question) <= just_split
            assert found.cluster == found.in_question[0][:-2] != "0"
        outcomes.add(found.outcome)
    assert len(outcomes) == 2


def test_labels_that_are_there_are_not_looked_at(
    run: Path, unseen: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    inputs, labels = unseen
    noise = np.random.default_rng(0).permutation(labels)
    found = [
        package.assign_unlabelled(run, inputs_only(tmp_path / "bare", inputs)),
        package.assign_unlabelled(run, own_folder(tmp_path / "true", inputs, labels)),
        package.assign_unlabelled(run, own_folder(tmp_path / "noise", inputs, noise)),
    ]
    assert found[0] == found[1] == found[2]


def test_assign_tells_of_a_newcomer_without_labels(
    run: Path, unseen: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    folder = inputs_only(tmp_path / "mine", rotated(unseen[0], 1, 4))
    ask = ("assign", run.name, "--data", folder, "--runs", run.parent, "--unlabelled")
    found = package.assign_unlabelled(run, folder)
    status, out, _ = cflower(*ask)
    assert status == 0
    for leaf in found.candidates:
        assert f"{leaf.entropy:.3f}" in out
    assert f"The newcomer belongs to cluster {found.cluster} (probability" in out
    assert f"cflower export {run.name} --cluster {found.cluster}" in out
    told = json.loads(cflower(*ask, "--json")[1])
    assert (told["cluster"], told["stranger"]) == (found.cluster, False)
    assert [step["cluster"] for step in told["path"]] == ["0", found.cluster[:3], found.cluster]
    assert [leaf["cluster"] for leaf in told["leaves"]] == [c.cluster for c in found.candidates]


def test_noise_resembles_nobody(run: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).random((150, 1, 8, 8), np.float32)
    folder = inputs_only(tmp_path / "mine", noise)
    ask = ("assign", run.name, "--data", folder, "--runs", run.parent, "--unlabelled")
    _, out, _ = cflower(*ask)
    assert "The newcomer resembles nobody: even the model that knows it best" in out
    assert "cflower export" not in out
    told = json.loads(cflower(*ask, "--json")[1])
    assert (told["cluster"], told["stranger"], told["in_question"]) == ("0", True, [])


def test_where_groups_differ_in_labels_alone_that_is_said(
    unseen: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    keys = "shift='label-swap' num-groups=2 num-server-rounds=6 trial-rounds=0 model='mlp'"
    status, _, err = cflower("simulate", "--clients", 8, "-c", keys, "--out", tmp_path / "runs")
    assert status == 0, err
    (swapped,) = (tmp_path / "runs").iterdir()
    assert json.loads((swapped / "summary.json").read_text())["adjusted_rand_index"] == 1.0
    folder = inputs_only(tmp_path / "mine", unseen[0])
    found = package.assign_unlabelled(swapped, folder)
    assert (found.outcome, found.cluster) == ("cannot be told without labels", "0")
    _, out, _ = cflower("assign", swapped, "--data", folder, "--unlabelled")
    assert "Which of the clusters 0.0, 0.1 the newcomer belongs to cannot be told" in out


def without_entropies(run: Path) -> None:
    path = run / "summary.json"
    summary = json.loads(path.read_text())
    for client in summary["clients"].values():
        del client["entropies"]
    path.write_text(json.dumps(summary))


def test_an_earlier_versions_run_does_not_tell_of_newcomers_without_labels(
    run: Path, unseen: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    copy = tmp_path / "runs" / run.name
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints", "report.html"))
    without_entropies(copy)
    folder = inputs_only(tmp_path / "mine", unseen[0])
    status, _, err = cflower("assign", copy, "--data", folder, "--unlabelled")
    assert status == 1
    assert "does not say how sure its models are of its clients' examples" in err
    assert err.count("\n") == 1


def test_text_has_its_labels_in_itself(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = SavedRun.read(run)
    text = replace(saved, own=RunConfig.read({"dataset": "text:letters", "model": "lstm"}))
    monkeypatch.setattr(SavedRun, "read", lambda path, seed_file: text)
    with pytest.raises(ConfigError, match="give the newcomer's text without --unlabelled"):
        package.assign_unlabelled(run, tmp_path)


def test_another_apps_newcomer_needs_labels(run: Path) -> None:
    status, _, err = cflower("assign", run, "--app", "my_app:app", "--unlabelled")
    assert (status, "Got --unlabelled without --data" in err) == (1, True)


def test_data_that_do_not_fit_are_refused_in_words(
    run: Path, unseen: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    inputs, labels = unseen

    def refused(name: str, says: str, *arrays: np.ndarray) -> None:
        folder = own_folder(tmp_path / name, *arrays) if arrays else tmp_path / name
        status, out, err = cflower("assign", run.name, "--data", folder, "--runs", run.parent)
        assert (status, out) == (1, "")
        assert says in err
        assert err.count("\n") == 1

    refused("none", "--data = ")
    refused("size", "its inputs have shape (1, 6, 8), but", inputs[:, :, :6], labels)
    refused("rows", "its inputs have shape (64,), but", inputs.reshape(-1, 64), labels)
    refused("classes", "has the class(es) x, which the run", inputs, np.where(labels, "1", "x"))
    refused("one", "only 1 example", inputs[:1], labels[:1])


def summary_with(**changed: Any) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        path = run / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))

    return change


def config_with(**changed: Any) -> Callable[[Path], object]:
    def change(run: Path) -> None:
        content = json.loads((run / "config.json").read_text())
        content["config"] |= changed
        (run / "config.json").write_text(json.dumps(content))

    return change


def cut(name: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:200])


def without_an_update(run: Path) -> None:
    path = run / "edges" / "0.0.safetensors"
    save_file(dict(list(load_file(path).items())[1:]), path)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (summary_with(finished=False, rounds=3), "is not finished (round 3)"),
        (lambda run: (run / "summary.json").write_text("[]"), "summary.json is damaged"),
        (summary_with(splits=[]), "was never split: all its clients share the model of cluster 0"),
        (config_with(method="isolated"), "trained every client alone"),
        (config_with(model="mlp"), "its model 'mlp' has other arrays"),
        (
            lambda run: (run / "config.json").write_text("{}"),
            "config.json is damaged: it has no config",
        ),
        (lambda run: (run / "examples.json").unlink(), "has no examples.json"),
        (lambda run: (run / "examples.json").write_text("[]"), "examples.json is damaged"),
        (lambda run: (run / "models/0.1.safetensors").unlink(), "0.1.safetensors is missing"),
        (lambda run: shutil.rmtree(run / "edges"), "copy the whole run folder"),
        (cut("tree.json"), "tree.json is damaged"),
        (lambda run: (run / "tree.json").write_text('{"clusters": {"0": {}}}'), "is damaged"),
        (cut("models/0.safetensors"), "models/0.safetensors is damaged"),
        (cut("edges/0.0.safetensors"), "edges/0.0.safetensors is damaged"),
        (without_an_update, "does not hold one update"),
    ],
)
def test_a_run_that_will_not_do_is_refused_in_words(
    run: Path,
    unseen: tuple[np.ndarray, np.ndarray],
    tmp_path: Path,
    damage: Callable[[Path], object],
    says: str,
) -> None:
    copy = tmp_path / "runs" / run.name
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints", "report.html"))
    damage(copy)
    folder = own_folder(tmp_path / "mine", *unseen)
    status, _, err = cflower("assign", copy, "--data", folder)
    assert status == 1
    assert says in err
    assert err.count("\n") == 1


# ------------------------------------------------------------------------------------- export


def test_safetensors_hold_the_leafs_arrays(run: Path, tmp_path: Path) -> None:
    file = package.export(run, client="partition-9", output=tmp_path / "mine.safetensors")
    model = build_model("cnn", (1, 8, 8), 10, seed=1)
    model.load_state_dict(load_file(file))
    leaf = SavedRun.read(run).tree.leaf_of("partition-9").name
    stored = load_file(run / "models" / f"{leaf}.safetensors")
    assert stored.keys() == model.state_dict().keys()
    for key, array in model.state_dict().items():
        assert torch.equal(array, stored[key])
    with safe_open(file, "pt") as content:
        told = content.metadata()
    assert (told["run"], told["cluster"], told["model"]) == (run.name, leaf, "cnn")


@pytest.mark.parametrize("file_format", ["torchscript", pytest.param("onnx", marks=needs_onnx)])
def test_a_file_read_back_answers_as_the_model_on_the_digits(
    run: Path, unseen: tuple[np.ndarray, np.ndarray], tmp_path: Path, file_format: str
) -> None:
    status, out, err = cflower(
        "export", run, "--cluster", "0.1", "--format", file_format, "--output", tmp_path / "model"
    )
    assert (status, err) == (0, "")
    assert out == f"Model: {tmp_path / 'model'}\nCard: {tmp_path / 'model.md'}\n"
    model = build_model("cnn", (1, 8, 8), 10, seed=1).eval()
    model.load_state_dict(load_file(run / "models" / "0.1.safetensors"))
    inputs = torch.tensor(unseen[0])
    with torch.no_grad():
        expected = model(inputs).numpy()
    answers = answers_of(tmp_path / "model", file_format, inputs)
    np.testing.assert_allclose(answers, expected, rtol=1e-5, atol=1e-5)


def test_the_ending_of_the_file_names_its_format(run: Path, tmp_path: Path) -> None:
    status, _, err = cflower("export", run, "--cluster", "0", "--output", tmp_path / "model.pt")
    assert (status, err) == (0, "")
    assert answers_of(tmp_path / "model.pt", "torchscript", torch.zeros(1, 1, 8, 8)).shape == (
        1,
        10,
    )
    for given in (
        ["--format", "onnx", "--output", "m.pt"],
        ["--format=torchscript", "--output=m.onnx"],
    ):
        status, out, err = cflower("export", run, "--cluster", "0", *given)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert "leave one of them out, or end the file in" in err
    package.export(run, cluster="0", output=tmp_path / "weights")
    assert load_file(tmp_path / "weights").keys() == load_file(run / "models/0.safetensors").keys()


def test_the_card_says_what_the_model_is(run: Path, tmp_path: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    package.export(run, client="partition-9", output=tmp_path / "mine.safetensors")
    card = (tmp_path / "mine.safetensors.md").read_text()
    client = summary["clients"]["partition-9"]
    assert f"# Model of cluster {client['cluster']}" in card
    assert "3 clients: partition-9, partition-10, partition-11" in card
    assert f"{run.name}, finished after 8 rounds, seed 0" in card
    assert "(batch, 1, 8, 8)" in card
    assert "0 = 0, 1 = 1, 2 = 2" in card
    assert f"| partition-9 | {client['held_out']:g} | {client['accuracy']:.1%} |" in card
    assert "projection-dim = 2000" in card
    package.export(run, cluster="0", output=tmp_path / "root")
    root = (tmp_path / "root.md").read_text()
    assert f"| partition-9 | {client['held_out']:g} | {client['fl_accuracy']:.1%} |" in root
    assert "the model as it was before the split in round" in root
    package.export(run, cluster="0.1", output=tmp_path / "inner")
    assert "no final evaluation of this model" in (tmp_path / "inner.md").read_text()


def test_the_code_on_the_card_reads_the_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package.export(run, cluster="0", output=tmp_path / "model.safetensors")
    card = (tmp_path / "model.safetensors.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["logits"].shape == (1, 10)


def test_nothing_is_overwritten_and_nothing_left_half(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "mine"
    there.write_text("precious")
    for output in (there, tmp_path):
        status, _, err = cflower("export", run, "--cluster", "0", "--output", output)
        assert (status, str(output) in err) == (1, True)
    (tmp_path / "other.md").write_text("precious")
    with pytest.raises(ExportError, match=r"other\.md is there already"):
        package.export(run, cluster="0", output=tmp_path / "other")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cflower.exporting.export.model_card", full)
    with pytest.raises(ExportError, match="No space left on device"):
        package.export(run, cluster="0", output=tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "other.md"}
    assert there.read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "expected exactly one of them"),
        (["--client", "partition-1", "--cluster", "0"], "expected exactly one of them"),
        (["--client", "partition-99"], "has no client 'partition-99': did you mean 'partition-9'"),
        (["--cluster", "0.7"], "cluster = '0.7' is not known"),
        (["--cluster", "0", "--format", "pickle"], "format = 'pickle' is not known"),
        (["--cluster", "0", "--output", "/no/such/folder/model"], "There is no folder /no/such"),
    ],
)
def test_a_wrong_question_is_one_sentence(run: Path, arguments: list[str], says: str) -> None:
    status, out, err = cflower("export", run, *arguments)
    assert (status, out) == (1, "")
    assert says in err


def test_an_interrupted_run_can_be_exported_and_the_card_says_so(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / run.name
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("checkpoints"))
    summary_with(finished=False)(copy)
    package.export(copy, client="partition-0", output=tmp_path / "model")
    card = (tmp_path / "model.md").read_text()
    assert "not finished, 8 rounds so far" in card
    assert "no final evaluation" in card


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / ".cache"))
