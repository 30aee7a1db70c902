"""Folders as people have them: one class, odd encodings, damaged files."""

from contextlib import suppress
from dataclasses import replace

import datasets
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_iris

from cflower.data.client_data import client_data, natural_id_of
from cflower.data.folders import load_folder, training_files
from cflower.data.own_data import load_own_data
from cflower.data.settings import DataSettings
from cflower.errors import DataError
from tests.data.test_own_data import ONE_PART, refused


def test_one_folder_of_images_is_one_class_of_those_that_the_run_names(tmp_path):
    (tmp_path / "cat").mkdir()
    for number in range(6):
        pixels = np.full((8, 8), number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "cat" / f"{number}.png")
    data = load_own_data(str(tmp_path), ONE_PART, ("dog", "cat"))
    assert set(data.train.labels) == {1}
    refused(tmp_path, "only 1 class (cat)")
    refused(tmp_path / "cat", "has no labels: its columns are image", ("dog", "cat"))


def test_one_example_and_a_folder_above_the_classes(tmp_path):
    for client in ("farm 1", "farm 2"):
        for kind in ("cat", "dog"):
            (tmp_path / client / kind).mkdir(parents=True)
            Image.fromarray(np.eye(8, dtype=np.uint8)).save(tmp_path / client / kind / "a.png")
    assert load_folder(tmp_path).columns["folder"].tolist() == 2 * ["farm 1"] + 2 * ["farm 2"]
    alone = tmp_path / "farm 1" / "cat"
    (alone.parent / "dog" / "a.png").unlink()
    refused(tmp_path / "farm 1", "has 1 example: at least 2", ("cat", "dog"))


NUMBERS = "a,target\n" + "".join(f"{i},{i}\n" for i in range(200))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (NUMBERS.encode(), "200 different labels in its label column 'target' for 200 rows"),
        (NUMBERS.encode(), "or set task = 'regression' to predict numbers"),
        (b"a,y\n1,0.5\n2,1.25\n", "or set task = 'regression' to predict numbers"),
        ("ort,label\nKöln,1\nUlm,2\n".encode("latin-1"), "can't decode byte 0xf6 in position 11"),
        ("a,label\n1,x\n2,y\n".encode("utf-16"), "can't decode byte 0xff in position 0"),
        (b"a,label\n1,x\n2,y,z\n", "Expected 2 columns, got 3: 2,y,z"),
        (b"a,a,label\n1,2,x\n", "two columns named 'a'"),
        (b"\n", "Empty CSV file"),
    ],
)
def test_an_unreadable_table_is_refused_with_the_cause(tmp_path, content, words):
    (tmp_path / "rows.csv").write_bytes(content)
    refused(tmp_path, words)


@pytest.fixture
def sites():
    """Iris flowers of three sites, their kinds named."""
    iris = load_iris(as_frame=True)
    flowers = iris.frame.assign(kind=iris.target_names[iris.target]).drop(columns="target")
    return {f"site-{site}": flowers.iloc[place::3] for place, site in enumerate("abc")}


IRIS = DataSettings(partitioner="natural-id", natural_id_column="file", shift="none")
PETAL = "petal width (cm)"


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("place", ["{}.{}", "{}/rows.{}"])
@pytest.mark.parametrize("index", [True, False])
def test_a_file_for_each_client(tmp_path, sites, form, place, index):
    for name, rows in sites.items():
        path = tmp_path / place.format(name, form)
        path.parent.mkdir(exist_ok=True)
        getattr(rows.sample(frac=1), f"to_{form}")(path, index=index)
    column = "folder" if "/" in place else "file"
    settings = replace(IRIS, dataset=str(tmp_path), label_column="kind", natural_id_column=column)
    for number, (name, rows) in enumerate(sites.items()):
        data = client_data(settings, number, 3)
        assert natural_id_of(settings, number, 3) == name
        inputs = np.concatenate([data.train.inputs, data.decide.inputs, data.report.inputs])
        assert inputs.shape == (50, 4)  # without the numbers of rows that pandas writes
        assert inputs.sum() == pytest.approx(rows.drop(columns="kind").to_numpy().sum())


def test_files_with_different_columns(tmp_path, sites):
    for name, rows in sites.items():
        rows = rows.rename(columns={PETAL: "width"}) if name == "site-b" else rows
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    refused(tmp_path, "columns: site-b.csv lacks 'petal width (cm)' and has 'width', unlike")


@pytest.mark.parametrize(
    ("value", "words"),
    [("wide", "'wide' in row 2 of site-c"), ("2026-01-01", "'2026-01-01' in row 2 of site-c")],
)
def test_files_with_different_types(tmp_path, sites, value, words):
    for name, rows in sites.items():
        if name == "site-c":
            few = 1 if value == "wide" else len(rows)
            rows = rows.assign(**{PETAL: [value] * few + rows[PETAL].tolist()[few:]})
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    settings = replace(ONE_PART, label_column="kind")
    with pytest.raises(DataError) as error:
        load_own_data(str(tmp_path), settings)
    assert f"column 'petal width (cm)' has {words}, and numbers in most" in str(error.value)


def test_names_of_files_are_no_numbers_with_a_fault(tmp_path):
    for name in "12x":
        (tmp_path / f"{name}.csv").write_text("a,label\n1,x\n2,y\n")
    data = load_own_data(str(tmp_path), ONE_PART)
    assert data.train.input_shape == (1,)
    for name in "12x":
        (tmp_path / f"{name}.csv").write_text("a,label,file\n1,x,3\n2,y,4\n")
    assert load_folder(tmp_path).columns["file"].to_pylist() == 3 * [3, 4]  # the data's own


@pytest.mark.parametrize("parts", [True, False])
def test_what_datasets_saves_is_read_as_it_is(tmp_path, sites, parts):
    data = datasets.Dataset.from_pandas(sites["site-a"]).class_encode_column("kind")
    kept = datasets.DatasetDict({"train": data, "test": data.select(range(3))}) if parts else data
    kept.save_to_disk(tmp_path / "saved")
    table = load_folder(tmp_path / "saved")
    assert table.classes["kind"] == ("setosa", "versicolor", "virginica")
    assert (len(table.columns["kind"]), len(table.columns)) == (50, 5)


@pytest.mark.parametrize("name", ["a.npz", "a.parquet", "cat/a.png"])
def test_damaged_files_name_their_cause(tmp_path, name):
    for number in range(3):
        path = (tmp_path / name).with_stem(str(number))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"PK\x03\x04 and so on, but no archive" * 9)
    refused(tmp_path, "(", ("cat", "dog"))


def test_a_bomb_of_an_image_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / name / "a.png")
    refused(tmp_path, "a.png: DecompressionBombError")


def test_names_mark_training_examples_as_for_datasets(tmp_path):
    from datasets.data_files import get_data_patterns, resolve_pattern

    layouts = [
        ["train/a.csv", "test/b.csv", "c.csv"],
        ["my-train-part/x/a.csv", "b.csv"],
        ["train.csv", "test.csv", "other.csv"],
        ["data_training.csv", "dev.csv"],
        ["a.csv", "trains.csv", "latest.csv"],
        ["train-00000-of-00001.csv", "validation-00000-of-00001.csv"],
    ]
    for number, names in enumerate(layouts):
        folder = tmp_path / str(number)
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("a,label\n1,x\n2,y\n")
        patterns = get_data_patterns(str(folder))["train"]
        theirs = set()
        for pattern in patterns:
            with suppress(FileNotFoundError):  # what a pattern that fits nothing raises
                theirs |= set(resolve_pattern(pattern, str(folder)))
        files = sorted(folder.rglob("*.csv"))
        assert {str(path) for path in training_files(folder, files, "it")} == theirs


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (["bullet_train", "freight_train", "bus"], 3),
        (["test", "control"], 2),
        (["train/cat", "train/dog", "test/cat", "test/dog"], 2),
    ],
)
def test_a_class_may_have_any_name(names, classes, tmp_path):
    for name in names:
        (tmp_path / name).mkdir(parents=True)
        for number in range(6):
            Image.new("L", (4, 4), number).save(tmp_path / name / f"{number}.png")
    table = load_folder(tmp_path)
    assert (len(table.classes["label"]), len(table.columns["label"])) == (classes, 6 * classes)


def test_numbers_are_whole_in_one_file_and_broken_in_another(tmp_path):
    pd.DataFrame({"a": [1, 2], "label": ["x", "y"]}).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"a": [0.5, 2], "label": ["x", "y"]}).to_csv(tmp_path / "b.csv", index=False)
    data = load_own_data(str(tmp_path), ONE_PART)
    numbers = np.concatenate([data.train.inputs, data.report.inputs])
    assert sorted(numbers.ravel()) == [0.5, 1, 2, 2]
