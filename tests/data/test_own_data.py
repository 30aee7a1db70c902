from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from cflower.data.client_data import ClientData
from cflower.data.columns import Roles
from cflower.data.own_data import OwnData, load_own_data
from cflower.errors import DataError

# the CSV reader of `datasets` leaves the closing of its files to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 6, 6), dtype=np.uint8)
LABELS = np.array(["dog", "cat"] * 6)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / ".cache"))


def write(folder: Path, form: str) -> None:
    """The same twelve examples in one of the forms."""
    folder.mkdir()
    if form == "images":
        for number, (pixels, label) in enumerate(zip(PIXELS, LABELS, strict=True)):
            (folder / label).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(folder / label / f"{number:02}.png")
    elif form == "npz":
        np.savez(folder / "one.npz", images=PIXELS[:5], labels=LABELS[:5])
        np.savez(folder / "two.npz", x=PIXELS[5:], y=LABELS[5:])
    else:
        rows = pd.DataFrame({"image": [pixels.tolist() for pixels in PIXELS], "label": LABELS})
        rows.to_parquet(folder / "rows.parquet")


def everything(data: ClientData) -> set[tuple[bytes, str]]:
    """All examples, in whatever order they came."""
    return {
        (image.tobytes(), part.class_names[label])
        for part in (data.train, data.validation)
        for image, label in zip(part.inputs, part.labels, strict=True)
    }


@pytest.mark.parametrize("form", ["images", "parquet", "npz"])
def test_every_form_gives_the_same_examples(tmp_path: Path, form: str) -> None:
    write(tmp_path / "mine", form)
    data = load_own_data(OwnData(str(tmp_path / "mine"), validation_fraction=0.25))
    assert data.train.input_shape == (1, 6, 6)
    assert (len(data.train), len(data.validation), data.group) == (9, 3, None)
    scaled = PIXELS[:, None].astype(np.float32) / np.float32(255)
    assert everything(data) == {(i.tobytes(), str(n)) for i, n in zip(scaled, LABELS, strict=True)}


def test_rows_of_numbers_from_csv_and_npz(tmp_path: Path) -> None:
    table = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    (tmp_path / "csv").mkdir()
    rows = pd.DataFrame(table, columns=["a", "b", "c"]).assign(label=[0, 1] * 4)
    rows.to_csv(tmp_path / "csv" / "rows.csv", index=False)
    (tmp_path / "npz").mkdir()
    np.savez(tmp_path / "npz" / "rows.npz", inputs=table, labels=[0, 1] * 4)
    csv, npz = (load_own_data(OwnData(str(tmp_path / form))) for form in ("csv", "npz"))
    assert csv.train.class_names == npz.train.class_names == ("0", "1")
    np.testing.assert_allclose(csv.train.inputs, npz.train.inputs, rtol=1e-6)
    np.testing.assert_array_equal(csv.train.labels, npz.train.labels)


def test_classes_are_matched_by_name(tmp_path: Path) -> None:
    write(tmp_path / "mine", "npz")
    folder = str(tmp_path / "mine")
    assert load_own_data(OwnData(folder)).train.class_names == ("cat", "dog")
    run = ("fox", "dog", "cat")
    data = load_own_data(OwnData(folder, run))
    assert data.train.class_names == run
    assert everything(data) == everything(load_own_data(OwnData(folder)))


def test_the_folders_own_classes_are_in_natural_order(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    np.savez(tmp_path / "mine" / "a.npz", x=PIXELS, y=[str(n) for n in range(12)])
    own = load_own_data(OwnData(str(tmp_path / "mine")))
    assert own.train.class_names == tuple(str(n) for n in range(12))


def test_one_class_is_enough_where_the_run_names_more(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    np.savez(tmp_path / "mine" / "a.npz", x=PIXELS, y=["cat"] * 12)
    folder = str(tmp_path / "mine")
    assert load_own_data(OwnData(folder, ("cat", "dog"))).train.num_classes == 2
    with pytest.raises(DataError, match=r"only 1 class \(cat\)"):
        load_own_data(OwnData(folder))


def test_the_held_out_examples_depend_on_the_seed_only(tmp_path: Path) -> None:
    write(tmp_path / "mine", "images")

    def held_out(seed: int) -> bytes:
        load_own_data.cache_clear()
        return load_own_data(OwnData(str(tmp_path / "mine"), seed=seed)).validation.inputs.tobytes()

    assert held_out(0) == held_out(0) != held_out(1)


def refused(folder: Path, says: str, classes: tuple[str, ...] = ()) -> None:
    with pytest.raises(DataError) as error:
        load_own_data(OwnData(str(folder), classes))
    assert says in str(error.value)
    assert str(folder) in str(error.value)


def test_what_does_not_fit_is_refused_in_words(tmp_path: Path) -> None:
    refused(tmp_path / "none", "there is no such folder")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "is an empty folder")
    write(tmp_path / "mine", "npz")
    refused(tmp_path / "mine", "has the class(es) dog, which the run does not", ("cat", "fox"))


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": PIXELS}, "has no array named y or labels, only x"),
        ({"pictures": PIXELS, "y": LABELS}, "has no array named x or images or inputs, only pi"),
        ({"x": PIXELS, "y": LABELS[:3]}, "has labels of shape (3,)"),
        ({"x": PIXELS[:, 0, 0], "y": LABELS}, "has inputs of shape (12,)"),
        ({"x": PIXELS, "y": LABELS.astype(object)}, "cannot be read"),
        ({"x": PIXELS[:0], "y": LABELS[:0]}, "has no examples"),
    ],
)
def test_archives_that_do_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    (tmp_path / "mine").mkdir()
    np.savez(tmp_path / "mine" / "a.npz", **arrays)
    refused(tmp_path / "mine", says)


def test_missing_columns_and_unequal_images(tmp_path: Path) -> None:
    (tmp_path / "csv").mkdir()
    pd.DataFrame({"a": [1.0, 2.0], "b": [0, 1]}).to_csv(tmp_path / "csv" / "rows.csv", index=False)
    refused(tmp_path / "csv", "has no labels: its columns are a, b")
    write(tmp_path / "images", "images")
    Image.fromarray(PIXELS[0, :3]).save(tmp_path / "images" / "cat" / "99.png")
    refused(tmp_path / "images", "images of different sizes, 6x6 grey and 6x3 grey")
    write(tmp_path / "mixed", "npz")
    np.savez(tmp_path / "mixed" / "z.npz", x=PIXELS[:, :3], y=LABELS)
    refused(tmp_path / "mixed", "arrays of different kinds, (6, 6) uint8 in one.npz and (3, 6)")


def test_without_labels_only_the_inputs_are_read(tmp_path: Path) -> None:
    classes, rows = ("cat", "dog"), PIXELS.reshape(12, -1)[:, :3].astype(float)
    table = pd.DataFrame(rows, columns=["a", "b", "c"])
    for name in ("plain", "named", "other", "half"):
        (tmp_path / name).mkdir()
    table.to_csv(tmp_path / "plain" / "rows.csv", index=False)
    table.assign(label=LABELS).to_csv(tmp_path / "named" / "rows.csv", index=False)
    table.assign(kind=1).to_csv(tmp_path / "other" / "rows.csv", index=False)
    table.assign(label=["cat", None] * 6).to_csv(tmp_path / "half" / "rows.csv", index=False)
    for name, label in [("plain", ""), ("named", ""), ("half", ""), ("other", "kind")]:
        own = OwnData(str(tmp_path / name), classes, roles=Roles(label=label, unlabelled=True))
        data = load_own_data(own)
        found = np.concatenate([data.train.inputs, data.validation.inputs])
        assert sorted(found.tolist()) == sorted(rows.tolist())
        assert data.train.class_names == classes
    with pytest.raises(DataError, match="cflower assign --unlabelled"):
        load_own_data(OwnData(str(tmp_path / "plain"), classes))


@pytest.mark.parametrize("form", ["images", "npz", "parquet"])
def test_without_labels_every_form_is_read(tmp_path: Path, form: str) -> None:
    write(tmp_path / "labelled", form)
    bare = tmp_path / "bare"
    bare.mkdir()
    if form == "images":
        for file in (tmp_path / "labelled").rglob("*.png"):
            file.rename(bare / file.name)
    elif form == "npz":
        np.savez(bare / "all.npz", x=PIXELS)
    else:
        pd.DataFrame({"image": [p.tolist() for p in PIXELS]}).to_parquet(bare / "rows.parquet")
    data = load_own_data(OwnData(str(bare), ("cat", "dog"), roles=Roles(unlabelled=True)))
    found = np.concatenate([data.train.inputs, data.validation.inputs])
    assert found.shape == (12, 1, 6, 6)
    assert {image.tobytes() for image in (found * 255).round().astype(np.uint8)} == {
        image.tobytes() for image in PIXELS
    }
