"""Folders as people have them: one class, odd encodings, damaged files."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from cflower.data.folders import training_files
from cflower.data.own_data import OwnData, load_own_data
from cflower.errors import DataError


def test_one_folder_of_images_is_one_class_of_those_that_the_run_names(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for number in range(6):
        pixels = np.full((8, 8), number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "cat" / f"{number}.png")
    data = load_own_data(OwnData(str(tmp_path), ("dog", "cat")))
    assert set(data.train.labels) == {1}
    with pytest.raises(DataError, match=r"only 1 class \(cat\)"):
        load_own_data(OwnData(str(tmp_path)))
    with pytest.raises(DataError, match="has no labels: its columns are image"):
        load_own_data(OwnData(str(tmp_path / "cat"), ("dog", "cat")))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("ort,label\nKöln,1\nUlm,2\n".encode("latin-1"), "can't decode byte 0xf6 in position 11"),
        ("a,label\n1,x\n2,y\n".encode("utf-16"), "can't decode byte 0xff in position 0"),
        (b"a,label\n1,x\n2,y,z\n", "Expected 2 columns, got 3: 2,y,z"),
        (b"a,a,label\n1,2,x\n", "two columns named 'a'"),
        (b"\n", "is empty"),
    ],
)
def test_a_table_that_cannot_be_read_says_why(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "rows.csv").write_bytes(content)
    with pytest.raises(DataError) as refused:
        load_own_data(OwnData(str(tmp_path)))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_files_with_different_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,label\n1,x\n")
    (tmp_path / "b.csv").write_text("b,label\n1,x\n")
    with pytest.raises(DataError, match=r"different columns \(not in all: a, b\)"):
        load_own_data(OwnData(str(tmp_path)))


@pytest.mark.parametrize("name", ["a.npz", "a.parquet", "cat/a.png"])
def test_damaged_files_name_their_cause(tmp_path: Path, name: str) -> None:
    for number in range(3):
        path = (tmp_path / name).with_stem(str(number))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"PK\x03\x04 and so on, but no archive" * 9)
    with pytest.raises(DataError) as refused:
        load_own_data(OwnData(str(tmp_path), ("cat", "dog")))
    assert "(" in str(refused.value)
    assert str(tmp_path) in str(refused.value)


def test_a_bomb_of_an_image_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / name / "a.png")
    with pytest.raises(DataError, match=r"a\.png: DecompressionBombError"):
        load_own_data(OwnData(str(tmp_path)))


def test_training_examples_are_told_by_name_as_datasets_tells_them(tmp_path: Path) -> None:
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


def test_numbers_are_whole_in_one_file_and_broken_in_another(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1, 2], "label": ["x", "y"]}).to_csv(tmp_path / "a.csv", index=False)
    pd.DataFrame({"a": [0.5, 2], "label": ["x", "y"]}).to_csv(tmp_path / "b.csv", index=False)
    data = load_own_data(OwnData(str(tmp_path)))
    numbers = np.concatenate([data.train.inputs, data.validation.inputs])
    assert sorted(numbers.ravel()) == [0.5, 1, 2, 2]
