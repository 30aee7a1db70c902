"""IFCA's and FLUX's federations, rebuilt."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from families.planted import Job, run_config
from peers import levels
from peers.levels import KINDS, Level
from peers.peers import ROTATED, Contestant, config_of, measured
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


def test_pxy_turns_as_many_classes_as_the_level_states_by_quarters():
    found = made("pxy", 3)
    where = {image.tobytes() for image in IMAGES}
    upright = np.array([image.tobytes() in where for image in found.inputs])
    assert len(np.unique(found.labels[~upright])) == 3
    back = {
        turn: image.tobytes() in where
        for image in found.inputs[~upright][:1]
        for turn, image in enumerate(np.rot90(image, turn) for turn in range(4))
    }
    assert any(back.values())


def test_px_turns_and_from_level_five_on_colours():
    assert made("px", 2).inputs.shape[1:] == (12, 12)
    found = made("px", 6)
    assert found.inputs.shape[1:] == (12, 12, 3)
    full = (found.inputs == 255).all(axis=(1, 2))
    assert (full.sum(axis=1) == 1).all()  # one channel is filled
    assert set(levels.rotated(IMAGES[:1], 90).ravel()) == set(IMAGES[0].ravel())


def test_lenet_keeps_the_latent_vectors_of_flux_before_its_last_part():
    model = levels.lenet5((3, 28, 28), 10)
    layers = list(model.children())
    assert layers[-1][0].in_features == 400  # type: ignore[index]
    assert len(levels.lenet5((1, 32, 32), 10)(torch.zeros(2, 1, 32, 32))[0]) == 10


def test_the_federations_of_other_papers_are_families_of_the_contest(mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(levels, "EXAMPLES", 40)  # the digits have no more
    keys = config_of("mnist", str(mnist), "flux-px-8", 0, {"num-server-rounds": 3}, tmp_path)
    job = Job("mnist", "flux-px-8", "flux", 0, keys)
    record = measured(Contestant(job, {}))
    assert record["groups"] == keys["num-groups"] > 1
    assert record["config"]["given"] == record["given"] != ""
    rotated = config_of("mnist", str(mnist), ROTATED, 0, {}, tmp_path)
    # The run config of the Flower baseline in examples/, as tests/test_examples.py has it.
    assert (rotated["local-epochs"], rotated["batch-size"], rotated["momentum"]) == (10, 200, 0.0)
    model = levels.one_hidden_layer((1, 28, 28), 10)
    assert sum(p.numel() for p in model.parameters()) == 159_010


def test_values_that_a_method_must_be_given_can_be_tried():
    job = Job(
        "digits", "rotation-2", "pacfl", 20, run_config("digits", "", "rotation-2", "auto", 20, {})
    )
    given = [Contestant(job, tuned).settings["given"] for tuned in ({}, {"alpha": 30.0})]
    assert given[0] != given[1] == "alpha = 30 degrees; raw data vectors"
