"""A data owner's commands: assign and export, on a run with two levels of splits."""

import json
import shutil
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import cflower as package
from cflower.cli.simulate import shown_name
from cflower.data.settings import DataSettings
from cflower.data.shifts import rotated
from cflower.data.sources import load_source
from cflower.errors import ExportError
from cflower.exporting.files import onnx_logits
from cflower.learning.models import build_model
from cflower.newcomers.pytorch_run import SavedRun
from tests.command import error_of, output_of, simulated
from tests.data.conftest import own_cache  # noqa: F401
from tests.exporting.onnx_packages import needs_onnx
from tests.run_content import read_json
from tests.runs.folders import edited

pytestmark = pytest.mark.slow

IN_THE_RUN = 1200
RUN = (
    f"dataset-size={IN_THE_RUN} num-groups=4 num-server-rounds=8 projection-dim=2000 "
    "similarity-layers='conv*' split-criterion='norms' eps1=1.6 eps2=1.0 gamma-max=0.5 "
    "min-cluster-size=3"
)
"""Four groups, split in two steps; updates compared by a projection of some of their layers."""
Digits = tuple[np.ndarray, np.ndarray]


def grouped(out, clients, config):
    """The folder of a run that recovers the true groups."""
    folder = simulated(out, config, "--clients", clients)
    assert read_json(folder, "summary.json")["adjusted_rand_index"] == 1.0
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return grouped(tmp_path_factory.mktemp("runs"), 12, RUN)


@pytest.fixture(scope="module")
def unseen():
    """Digits that no client of the run has."""
    rest = load_source(DataSettings("digits")).take(np.arange(IN_THE_RUN, IN_THE_RUN + 150))
    return rest.examples().inputs, rest.labels


def examples_in(path, inputs, labels=None):
    """A folder of examples, with labels or without."""
    path.mkdir()
    np.savez(path / "mine.npz", x=inputs, **({} if labels is None else {"y": labels}))
    return path


def assigned(run, folder, *options):
    """The text and the JSON that `cflower assign` prints."""
    command = ("assign", run.name, "--data", folder, "--runs", run.parent, *options)
    return output_of(*command), json.loads(output_of(*command, "--json"))


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run's folder, to be damaged."""
    return shutil.copytree(run, tmp_path / "runs" / run.name)


def test_a_newcomer_of_every_kind_comes_to_its_group(run, unseen, tmp_path):
    summary = read_json(run, "summary.json")
    inputs, labels = unseen
    for group in range(4):
        folder = examples_in(tmp_path / str(group), rotated(inputs, group, 4), labels)
        found = package.assign(run, folder)
        members = summary["clusters"][found.cluster]
        assert {summary["groups"][name] for name in members} == {group}
        assert found.stranger_at is None
        assert [level.cluster for level in found.levels] == ["0", found.cluster[:3], found.cluster]
        assert found.levels[-1].metrics["accuracy"] > found.levels[0].metrics["accuracy"]
        assert (found.num_train, found.num_held_out) == (120, 30)


def test_assign_prints_the_path_for_people_and_programs(run, unseen, tmp_path):
    folder = examples_in(tmp_path / "mine", *unseen)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    out, record = assigned(run, folder)
    found = package.assign(run, folder)
    for level in found.levels:
        assert f"{level.metrics['accuracy']:.1%}" in out
        for child, alpha in level.step.similarities.items() if level.step else ():
            assert f"{child} {alpha:+.3f}" in out
    assert f"The newcomer belongs to cluster {found.cluster}" in out
    assert f"cflower export {shown_name(run)} --cluster {found.cluster}" in out
    assert (record["cluster"], record["stranger"]) == (found.cluster, False)
    accuracies = [level.metrics["accuracy"] for level in found.levels]
    assert [level["accuracy"] for level in record["path"]] == accuracies
    assert list(record["path"][0]["similarities"]) == ["0.0", "0.1"]
    assert record["path"][0]["margin"] == found.levels[0].step.margin
    assert "similarity" not in record["path"][-1]
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}


def test_noisy_labels_make_a_stranger(run, unseen, tmp_path):
    inputs, labels = unseen
    noise = np.random.default_rng(0).permutation(labels)
    out, record = assigned(run, examples_in(tmp_path / "noise", inputs, noise))
    assert "The newcomer resembles no cluster: at cluster 0" in out
    assert record["stranger"]


def test_data_that_do_not_fit_are_refused(run, unseen, tmp_path):
    inputs, labels = unseen

    def refused(name, says, *arrays):
        folder = examples_in(tmp_path / name, *arrays) if arrays else tmp_path / name
        assert says in error_of("assign", run.name, "--data", folder, "--runs", run.parent)

    refused("none", "--data = ")
    refused("size", "its inputs have shape (1, 6, 8), but", inputs[:, :, :6], labels)
    refused("rows", "its inputs have shape (64,), but", inputs.reshape(-1, 64), labels)
    refused("classes", "has the class(es) x, which the run", inputs, np.where(labels, "1", "x"))
    refused("one", "has 1 example: at least 2", inputs[:1], labels[:1])


def with_keys(name, part="", **changed):
    def change(run):
        with edited(run / name) as content:
            (content[part] if part else content).update(changed)

    return change


summary_with = partial(with_keys, "summary.json")
config_with = partial(with_keys, "config.json", "config")
settings_with = partial(with_keys, "config.json", "settings")


def written(name, text):
    return lambda run: (run / name).write_text(text)


def cut(name):
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:200])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (summary_with(finished=False, rounds=3), "is not finished (round 3)"),
        (written("summary.json", "[]"), "summary.json is damaged"),
        (summary_with(splits=[]), "was never split: all its clients share the model of cluster 0"),
        (settings_with(method="isolated"), "trained every client alone"),
        (config_with(model="mlp"), "its model 'mlp' has other arrays"),
        (written("config.json", "{}"), "config.json is damaged: format: Field required"),
        (lambda run: (run / "examples.json").unlink(), "has no examples.json"),
        (written("examples.json", "[]"), "examples.json is damaged"),
        (lambda run: shutil.rmtree(run / "checkpoints"), "copy the whole run folder"),
        (cut("checkpoints/000008.safetensors"), "cannot be read: wrong checksum"),
        (settings_with(**{"projection-dim": 7}), "the updates do not fit config.json"),
    ],
)
def test_an_unusable_run_is_refused(copy, unseen, tmp_path, damage, says):
    damage(copy)
    folder = examples_in(tmp_path / "mine", *unseen)
    assert says in error_of("assign", copy, "--data", folder)


def test_safetensors_hold_the_leafs_arrays(run, tmp_path):
    file = package.export(run, client="partition-9", output=tmp_path / "mine.safetensors")
    model = build_model("cnn", (1, 8, 8), 10, seed=1)
    model.load_state_dict(load_file(file))
    leaf = SavedRun(run).tree.leaf_of("partition-9").name
    stored = load_file(run / "models" / f"{leaf}.safetensors")
    assert stored.keys() == model.state_dict().keys()
    for key, array in model.state_dict().items():
        assert torch.equal(array, stored[key])
    with safe_open(file, "pt") as content:
        record = content.metadata()
    assert (record["run"], record["cluster"], record["model"]) == (run.name, leaf, "cnn")


@needs_onnx
def test_the_ending_of_the_file_names_its_format(run, unseen, tmp_path):
    file = tmp_path / "model.onnx"
    printed = output_of("export", run, "--cluster", "0.1", "--output", file)
    assert printed == f"Model: {file}\nCard: {file}.md\n"
    model = build_model("cnn", (1, 8, 8), 10, seed=1).eval()
    model.load_state_dict(load_file(run / "models" / "0.1.safetensors"))
    inputs = torch.tensor(unseen[0])
    with torch.no_grad():
        expected = model(inputs).numpy()
    answers = onnx_logits(file, inputs)
    np.testing.assert_allclose(answers, expected, rtol=1e-5, atol=1e-5)
    for chosen, name in (("onnx", "m.safetensors"), ("safetensors", "m.onnx")):
        given = f"--format={chosen}", f"--output={name}"
        error = error_of("export", run, "--cluster", "0", *given)
        assert "leave one of them out, or end the file in" in error
    package.export(run, cluster="0", output=tmp_path / "weights")
    assert load_file(tmp_path / "weights").keys() == load_file(run / "models/0.safetensors").keys()


def test_the_card_says_what_the_model_is(run, tmp_path):
    summary = read_json(run, "summary.json")
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


def test_the_code_on_the_card_reads_the_file(run, tmp_path, monkeypatch):
    package.export(run, cluster="0", output=tmp_path / "model.safetensors")
    card = (tmp_path / "model.safetensors.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["logits"].shape == (1, 10)


def test_nothing_is_overwritten_and_nothing_left_half(run, tmp_path, monkeypatch):
    there = tmp_path / "mine"
    there.write_text("precious")
    for output in (there, tmp_path):
        assert str(output) in error_of("export", run, "--cluster", "0", "--output", output)
    (tmp_path / "other.md").write_text("precious")
    with pytest.raises(ExportError, match=r"other\.md exists"):
        package.export(run, cluster="0", output=tmp_path / "other")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cflower.exporting.export.model_card", full)
    with pytest.raises(ExportError, match="No space left on device"):
        package.export(run, cluster="0", output=tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "other.md"}
    assert there.read_text() == "precious"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Give a client or a cluster, by --client or --cluster; got neither"),
        (["--client", "partition-1", "--cluster", "0"], "got client 'partition-1' and cluster '0'"),
        (["--client", "partition-99"], "has no client 'partition-99': did you mean 'partition-9'"),
        (["--cluster", "0.7"], "cluster = '0.7' is not known"),
        (["--cluster", "0", "--format", "torchscript"], "format = 'torchscript' is not known"),
        (["--cluster", "0", "--output", "/no/such/folder/model"], "There is no folder /no/such"),
    ],
)
def test_a_wrong_question_is_one_sentence(run, arguments, says):
    assert says in error_of("export", run, *arguments)
