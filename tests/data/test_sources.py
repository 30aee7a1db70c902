from contextlib import nullcontext

import datasets
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from cflower.data.client_data import load_client_data
from cflower.data.settings import DataSettings
from cflower.data.sources import load_source
from cflower.errors import DataError


def bytes_image(seed, shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def test_digits_are_the_real_ones_shuffled():
    source = load_source(DataSettings("digits", seed=3))
    assert source.class_names == tuple("0123456789")
    images = source.examples().inputs
    assert (images.shape, images.dtype) == ((1797, 1, 8, 8), np.float32)
    truth, rows = load_digits(), images.reshape(1797, -1) * 16
    order, true_order = np.lexsort(rows.T), np.lexsort(truth.data.T)
    np.testing.assert_array_equal(rows[order], truth.data[true_order])
    np.testing.assert_array_equal(source.labels[order], truth.target[true_order])


def test_size_and_seed():
    def first(size, seed):
        return load_source(DataSettings("digits", size, seed=seed)).labels.tolist()

    assert len(first(100, 0)) == 100
    assert first(100, 0) == first(0, 0)[:100]
    assert first(100, 0) == first(100, 0) != first(100, 1)


def test_parquet_of_pngs_and_whole_number_labels(tmp_path):
    pixels, digits = [bytes_image(n, (5, 6)) for n in range(4)], [10, 2, 2, 30]
    features = datasets.Features(img=datasets.Image(), digit=datasets.Value("int64"))
    columns = {"img": list(map(Image.fromarray, pixels)), "digit": digits}
    table = datasets.Dataset.from_dict(columns, features=features)
    table.to_parquet(str(tmp_path / "train.parquet"))
    source = load_source(DataSettings(str(tmp_path)))
    assert source.class_names == ("2", "10", "30")
    for image, label in zip(source.examples().inputs, source.labels, strict=True):
        (number,) = [n for n in range(4) if np.allclose(image[0] * 255, pixels[n])]
        assert source.class_names[label] == str(digits[number])


def test_pixel_arrays_with_channels_last(tmp_path):
    pixels = bytes_image(0, (6, 8, 8, 3))
    table = datasets.Dataset.from_dict({"x": pixels.tolist(), "y": [0, 1] * 3})
    table.to_parquet(str(tmp_path / "train.parquet"))
    images = load_source(DataSettings(str(tmp_path))).examples().inputs
    assert images.shape == (6, 3, 8, 8)
    np.testing.assert_allclose(np.sort(images.ravel()), np.sort(pixels.ravel()) / 255, rtol=1e-6)


def test_classes_are_those_of_the_whole_source(tmp_path):
    table = {"a": range(60), "label": ["rare"] + ["common", "usual"] * 29 + ["common"]}
    pd.DataFrame(table).to_csv(tmp_path / "rows.csv", index=False)
    for partition in range(3):
        data = load_client_data(DataSettings(shift="none", dataset=str(tmp_path)), partition, 3)
        assert data.train.class_names == ("common", "rare", "usual")


def refused(name, *words):
    with pytest.raises(DataError) as caught:
        load_client_data(DataSettings(shift="none", dataset=name), 0, 2)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert message.endswith(".")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_missing_folder_empty_folder_and_file(tmp_path):
    refused(str(tmp_path / "nope"), "is no folder")
    refused(str(tmp_path), "empty folder")
    (tmp_path / "rows.csv").write_text("a,label\n1,x\n")
    refused(str(tmp_path / "rows.csv"), "is no folder")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("a,b\n1,3\n2,4\n", "has no labels: its columns are a, b"),
        ("a,label\n1,x\n2,\n3,y\n4,x\n", "without a value in its label column"),
        ("a,label\n1,.5\n2,.7\n3,1\n4,2\n", "fractional numbers"),
        ("a,label\n1,x\n2,x\n3,x\n4,x\n", "only 1 class"),
        ("label\nx\ny\n", "no images, numbers or texts to learn from: its columns are label"),
        ("a,label\n1,x\ninf,y\n2,x\n3,y\ninf,x\ninf,y\n", "column 'a' has 'inf' in row "),
    ],
)
def test_unusable_values(tmp_path, rows, words):
    folder = tmp_path / "100 %s {sure}"
    folder.mkdir()
    (folder / "rows.csv").write_text(rows)
    refused(str(folder), words)


def test_only_a_test_split(tmp_path):
    (tmp_path / "test.csv").write_text("a,label\n1,3\n2,4\n")
    refused(str(tmp_path), "no training examples", "test")


def test_an_unreachable_hub_is_refused_at_once(monkeypatch):
    constants = "huggingface_hub.constants"
    monkeypatch.setattr(f"{constants}.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    refused("ylecun/mnits", "ylecun/mnits", "connect to the Hub", "'digits'", "local folder")
    assert not datasets.config.HF_HUB_OFFLINE


@pytest.mark.parametrize(("name", "revision"), [("owner/set@4ab3", "4ab3"), ("owner/set", None)])
def test_the_hub_is_asked_for_the_revision(monkeypatch, name, revision):
    asked = []

    def load_dataset(path, revision):
        asked.append((path, revision))
        return datasets.Dataset.from_dict({"a": [1, 2], "label": [0, 1]})

    monkeypatch.setattr("cflower.data.hub._reachable_or_cached", nullcontext)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(load_source(DataSettings(name))) == 2
    assert asked == [("owner/set", revision)]
