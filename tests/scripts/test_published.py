"""IFCA's and FLUX's federations, rebuilt."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from peers import levels
from peers.contest import compete, job_of
from peers.levels import KINDS, Level
from peers.peers import config_of
from PIL import Image
from sklearn.datasets import load_digits

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


def test_the_federations_of_other_papers_are_families_of_the_contest(mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(levels, "EXAMPLES", 40)  # the digits have no more
    keys = config_of("mnist", str(mnist), "flux-px-8", 0, {"num-server-rounds": 3}, tmp_path)
    job = job_of("mnist", "flux-px-8", "flux", 0, keys, {})
    record = compete(job, {})
    assert record["groups"] == keys["num-groups"] > 1
    assert job.settings["given"] == record["given"] != ""
    model = levels.one_hidden_layer((1, 28, 28), 10)
    assert sum(p.numel() for p in model.parameters()) == 159_010
