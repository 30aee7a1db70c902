"""The federations of IFCA, FLUX, PACFL and FedDrift, rebuilt."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from families import planted, streams
from peers import bigger, fresh, levels, natural, pfllib, theirs, unseen
from peers.contest import compete, job_of
from peers.federation import Federation
from peers.levels import KINDS, Level
from peers.peers import config_of
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from cflower.config import RunConfig
from cflower.seeding import generator

IMAGES = generator(0, "images").integers(256, size=(2_000, 12, 12), dtype=np.uint8)
LABELS = np.tile(np.arange(10), 200)


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST, but of scikit-learn's digits: a Parquet file of 28 x 28 pictures."""
    digits = load_digits()
    images = np.kron(digits.images * 15, np.ones((1, 4, 4))).astype(np.uint8)[:, 2:-2, 2:-2]
    files = []
    for image in images:
        Image.fromarray(image).save(file := BytesIO(), "PNG")
        files.append({"bytes": file.getvalue(), "path": None})
    folder = tmp_path_factory.mktemp("mnist")
    table = pa.table({"image": files, "label": digits.target.astype(np.int64)})
    pq.write_table(table, folder / "train.parquet")
    return folder


def made(kind: str, level: int, examples: int = 40, seed: int = 0) -> Level:
    return levels.federation(IMAGES, LABELS, kind, level, examples, seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", [1, 5, 8])
def test_every_client_has_its_share_and_the_largest_groups_come_first(kind, level):
    found = made(kind, level)
    assert sum(found.sizes) == 10
    assert list(found.sizes) == sorted(found.sizes, reverse=True)
    names, counts = np.unique(found.topic, return_counts=True)
    assert counts.tolist() == [40 * size for size in found.sizes]
    assert len(names) == len(found.sizes)
    assert len(found.inputs) == len(found.labels) == 400
    np.testing.assert_array_equal(found.inputs, made(kind, level).inputs)
    if kind == "pyx":  # no image is dealt out twice
        assert len(np.unique(found.inputs, axis=0)) == 400


@pytest.mark.parametrize(("level", "classes"), [(1, 10), (4, 7), (8, 3)])
def test_py_leaves_a_client_fewer_classes_the_higher_the_level(level, classes):
    found = made("py", level)
    of_groups = [found.labels[found.topic == topic] for topic in np.unique(found.topic)]
    assert {len(np.unique(labels)) for labels in of_groups} == {classes}
    assert len(of_groups) <= levels.BANK


def test_pyx_permutes_as_many_labels_as_the_level_states_and_no_image():
    found = made("pyx", 4)
    where = {image.tobytes(): label for image, label in zip(IMAGES, LABELS, strict=True)}
    true = np.array([where[image.tobytes()] for image in found.inputs])
    moved = np.unique(true[true != found.labels])
    assert 2 <= len(moved) <= 4
    for topic in np.unique(found.topic):
        mine = found.topic == topic
        pairs = set(zip(true[mine].tolist(), found.labels[mine].tolist(), strict=True))
        assert len(pairs) == 10  # one name for each class
    assert len(made("pyx", 1).sizes) == 1  # there is nothing to permute


@pytest.mark.slow
def test_the_federations_of_other_papers_are_families_of_the_contest(mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(levels, "EXAMPLES", 40)  # the digits have no more
    keys = config_of("mnist", str(mnist), "flux-px-8", 0, {"num-server-rounds": 3}, tmp_path)
    job = job_of("mnist", "flux-px-8", "flux", 0, keys, {}, tmp_path)
    record = compete(job, {})
    assert record["groups"] == keys["num-groups"] > 1
    assert job.settings["given"] == record["given"] != ""
    model = levels.one_hidden_layer((1, 28, 28), 10)
    assert sum(p.numel() for p in model.parameters()) == 159_010


@pytest.mark.parametrize("held", [2, 3])
def test_label_skew_shares_every_class_out_among_those_who_have_it(held, monkeypatch):
    monkeypatch.setattr(theirs, "EXAMPLES", 40)
    found = theirs.skewed(IMAGES, LABELS, held, 0)
    assert sum(found.sizes) == theirs.CLIENTS
    assert len(np.unique(found.inputs, axis=0)) == len(found.inputs) == 40 * theirs.CLIENTS
    topics, counts = np.unique(found.topic, return_counts=True)
    assert counts.tolist() == sorted(counts, reverse=True)  # as `deal_out` ranks them
    of_groups = [set(found.labels[found.topic == topic].tolist()) for topic in topics]
    assert {len(classes) for classes in of_groups} == {held}
    assert len(set(map(frozenset, of_groups))) == len(of_groups)
    sizes = zip(of_groups, found.sizes, strict=True)
    assert sum(size for classes, size in sizes if 0 in classes) >= theirs.CLIENTS // 10


def test_ifca_has_every_image_in_four_rotations():
    found = theirs.rotations(IMAGES[:30], LABELS[:30], (0, 1, 2, 3), 300)
    assert sum(found.sizes) == 1_200
    turned = found.inputs[found.topic == "group 03"]
    np.testing.assert_array_equal(np.rot90(turned, 1, (1, 2)), IMAGES[:30])
    np.testing.assert_array_equal(found.labels.reshape(4, 30), np.tile(LABELS[:30], (4, 1)))
    upright, turned = np.split(theirs.rotations(IMAGES[:30], LABELS[:30], (0, 2), 100).inputs, 2)
    np.testing.assert_array_equal(turned, upright[:, ::-1, ::-1])


@pytest.mark.parametrize(
    ("data", "law"),
    [
        ("sine", lambda x: x[:, 1] <= np.sin(x[:, 0])),
        ("circle", lambda x: (x[:, 0] - 0.2) ** 2 + (x[:, 1] - 0.5) ** 2 > 0.15**2),
        ("sea", lambda x: 10 * (x[:, 1] + x[:, 2]) > 8),
    ],
)
def test_a_stream_has_fresh_examples_in_each_step_by_the_concept_of_the_client(data, law, tmp_path):
    keys = streams.written(data, "", ((0, 0), (0, 1)), 0, tmp_path)
    wrong, seen = {}, []
    for step in (0, 1):
        config = streams.as_of(keys, 1 + 10 * step, rounds=10, steps=2)
        made = np.load(Path(config["dataset"]) / "train.npz")
        seen.append(made["x"])
        for client in (0, 1):
            mine = made["client"] == client
            wrong[step, client] = np.mean(law(made["x"][mine]) != made["y"][mine])
    noise = 0.1 if data == "sea" else 0.0
    assert all(wrong[place] == pytest.approx(noise, abs=0.04) for place in ((0, 0), (0, 1), (1, 0)))
    assert wrong[1, 1] > noise + 0.03
    assert len(np.unique(np.concatenate(seen), axis=0)) == 4 * streams.EXAMPLES


def test_a_stream_of_images_swaps_two_labels_of_a_concept(mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "EXAMPLES", 300)
    streams.written("mnist", str(mnist), ((0, 0), (3, 0)), 0, tmp_path)
    images, labels = levels.images_of(mnist)
    true = {image.tobytes(): label for image, label in zip(images, labels, strict=True)}
    made = np.load(tmp_path / "1" / "train.npz")
    pairs = {(true[x.tobytes()], y) for x, y in zip(made["x"][:300], made["y"][:300], strict=True)}
    assert {pair for pair in pairs if pair[0] != pair[1]} == {(5, 6), (6, 5)}
    assert "concept 3" in made["concept"]


@pytest.mark.parametrize("name", unseen.NAMES)
def test_unseen_clients_are_of_their_groups_and_share_no_image(name, mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(unseen, "EXAMPLES", 8)  # the digits have no more
    images, labels = levels.images_of(mnist)
    twice = np.tile(images, (2, 1, 1)), np.tile(labels, 2)  # one has 3,240 images of its own
    monkeypatch.setattr(unseen, "images_of", lambda folder: twice)
    keys = unseen.federation(name, str(mnist), 3, tmp_path)
    groups = [int(size) for size in keys["group-sizes"].split(",")]
    table = pd.read_parquet(tmp_path / "train.parquet")
    assert table.groupby("group")["partition"].nunique().tolist() == groups
    assert sorted(table["partition"].unique()) == list(range(sum(groups)))
    pixels = table.filter(regex=r"^p\d").to_numpy()
    assert pixels.shape[1] == unseen.SIDE**2
    assert 0 <= pixels.min() <= pixels.max() <= 1
    truth = planted.truth_of(RunConfig.read(keys).as_keys())
    assert list(truth.values()) == np.repeat(range(len(groups)), groups).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", fresh.NAMES)
def test_fresh_clients_are_of_their_groups_and_share_no_picture(name, tmp_path, monkeypatch):
    rng = generator(0, "pictures")
    pictures = rng.integers(256, size=(20_000, 28, 28), dtype=np.uint8)
    monkeypatch.setattr(fresh, "images_of", lambda folder: (pictures, np.arange(20_000) % 10))
    words, newsgroups = rng.random((20_000, 30)) < 0.2, np.arange(20_000) % 16
    names = sorted(f"{section}{i}" for section in fresh.SECTIONS for i in range(4))
    monkeypatch.setattr(fresh, "articles", lambda folder: (words, newsgroups, names))
    keys = fresh.federation(name, str(tmp_path), 3, tmp_path)
    groups = [int(size) for size in keys["group-sizes"].split(",")]
    assert groups == sorted(groups, reverse=True)
    table = pd.read_parquet(tmp_path / "train.parquet")
    assert table.groupby("group")["partition"].nunique().tolist() == groups
    assert (table.groupby("partition")["label"].nunique() > 1).all()
    inputs = table.filter(regex=r"^p\d").to_numpy()
    assert np.isfinite(inputs).all()
    if name != "fresh-news":
        assert len(np.unique(inputs, axis=0)) == len(inputs)
    truth = planted.truth_of(RunConfig.read(keys).as_keys())
    assert list(truth.values()) == np.repeat(range(len(groups)), groups).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", bigger.NAMES)
def test_a_bigger_model_is_all_that_its_clients_send_and_what_is_frozen_stays(
    name, tmp_path, monkeypatch
):
    rng, labels = generator(0, "bigger"), np.arange(8_000) % 20
    pictures = rng.integers(256, size=(8_000, 32, 32, 3), dtype=np.uint8)
    monkeypatch.setattr(bigger, "images_of", lambda folder: (pictures, labels % 10))
    words = rng.integers(bigger.WORDS, size=(8_000, bigger.LENGTH)).astype(np.float32)
    names = sorted([f"{section}{i}" for section in fresh.SECTIONS for i in range(4)] + [*"abcd"])
    monkeypatch.setattr(bigger, "articles", lambda folder: (words, labels, names))
    monkeypatch.setenv(bigger.PRETRAINED, "")  # which is then as it was before
    keys = bigger.federation(name, str(tmp_path), 3, tmp_path / "made")
    groups = [int(size) for size in keys["group-sizes"].split(",")]
    assert groups == sorted(groups, reverse=True)
    here = Federation(keys)
    trained = here.train("partition-0", here.initial, 1)
    after = here.measure("partition-0", trained)
    assert after != here.measure("partition-0", here.initial)
    assert after == here.measure("partition-0", trained)  # BatchNorm's statistics, too
    if name == "bigger-lora":
        saved = load_file(tmp_path / "transformer.safetensors")
        assert len(trained) < 0.05 * sum(array.numel() for array in saved.values())
        kept = dict(bigger.lora((bigger.LENGTH,), 10).named_buffers())
        assert torch.equal(kept["transformer.words.weight"], saved["words.weight"])


@pytest.mark.parametrize("name", pfllib.NAMES)
def test_pfllibs_clients_are_dealt_as_its_generator_deals_them(name, mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(pfllib, "EXAMPLES", 1_600)
    monkeypatch.setattr(pfllib, "LEAST", 16)
    keys = pfllib.federation(name, str(mnist), 3, tmp_path)
    table = pd.read_parquet(tmp_path / "train.parquet")
    clients = table.groupby("partition")
    assert len(table) == 1_600
    assert clients.ngroups == pfllib.CLIENTS == keys["min-available-nodes"]
    assert len(pfllib.dnn((784,), 10)[1].weight.T) == table.filter(regex=r"^p\d").shape[1]
    groups = [int(size) for size in keys["group-sizes"].split(",")]
    if name == "pfllib-pat":
        assert (clients["label"].nunique() == 2).all()
        assert groups == [4] * 5
        assert (table.groupby("group")["label"].nunique() == 2).all()
    else:
        assert groups == ([5] * 4 if name.endswith("rotation") else [20])
        assert clients.size().min() >= 16


@pytest.mark.parametrize("name", natural.NAMES)
def test_units_of_a_real_table_are_clients_in_the_order_of_their_groups(name, tmp_path):
    made_up_tables(tmp_path)
    keys = natural.federation(name, str(tmp_path), 3, tmp_path / "made")
    table = pd.read_parquet(tmp_path / "made" / "train.parquet")
    sizes = [int(size) for size in keys["group-sizes"].split(",")]
    clients = table.groupby("partition")
    assert clients.ngroups == sum(sizes) == keys["min-available-nodes"] == 7  # one has one class
    assert sizes == sorted(sizes, reverse=True) == [4, 3]
    assert table.groupby("group")["partition"].nunique().tolist() == sizes
    assert clients.size().between(natural.LEAST, natural.MOST).all()
    assert np.isfinite(table.filter(regex=r"^p\d").to_numpy()).all()


def made_up_tables(folder):
    """Eight units of 20 rows as the package has them, in two groups; the last has one class."""
    rng, unit = np.random.default_rng(3), np.repeat(range(8), 20)
    label = np.where(unit == 7, 0, rng.integers(2, size=160))
    year = np.tile(range(1940, 2020, 4), 8)
    numbers = pd.DataFrame(rng.normal(50, 9, (160, 9)), columns=[*"abcd", "percblack", *"fghi"])
    names = ("popul", "density", "rpcpersinc", "rpcincmaint", "rpcunemins")
    frames = {
        "presidentialElections": pd.DataFrame(
            {"state": unit, "year": year, "south": unit < 3, "demVote": 40 + 20 * label}
        ),
        "countymurders": numbers.rename(columns=dict(zip("abcdf", names, strict=True))).assign(
            statefips=np.array([1, 5, 12, 4, 6, 8, 56, 53])[unit], year=year, murders=label
        ),
        "MplsStops": pd.DataFrame(
            {
                "neighborhood": unit,
                "policePrecinct": 1 + (unit < 3),
                "problem": np.where(label, "traffic", "suspicious"),
                "date": pd.date_range("2017-01-01", periods=160, freq="7h").astype(str),
                "race": rng.choice(["Black", "White"], 160),
                "gender": None,
                "preRace": "Unknown",
            }
        ),
    }
    for name, frame in frames.items():
        frame.to_parquet(folder / f"{name}.parquet")
