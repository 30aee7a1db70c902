from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from cflower.data.own_data import load_own_data
from cflower.data.settings import DataSettings
from cflower.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 6, 6), dtype=np.uint8)
SCALED = PIXELS[:, None].astype(np.float32) / np.float32(255)
ONE_PART = DataSettings(decide_fraction=0)
LABELS = np.array(["dog", "cat"] * 6)


def write(folder, form):
    """The same twelve examples in one of the forms."""
    folder.mkdir()
    if form == "images":
        for number, (pixels, label) in enumerate(zip(PIXELS, LABELS, strict=True)):
            place = folder / label
            place.mkdir(exist_ok=True)
            Image.fromarray(pixels).save(place / f"{number:02}.png")
    elif form == "npz":
        for name, part in (("one", slice(5)), ("two", slice(5, None))):
            arrays = {"x": PIXELS[part], "y": LABELS[part], f"only_in_{name}": 3}
            np.savez(folder / f"{name}.npz", **arrays)
    else:
        rows = pd.DataFrame({"image": [pixels.tolist() for pixels in PIXELS], "label": LABELS})
        rows.to_parquet(folder / "rows.parquet")


def everything(data):
    """All examples, in whatever order they came."""
    return {
        (image.tobytes(), part.class_names[label])
        for part in (data.train, data.report)
        for image, label in zip(part.inputs, part.labels, strict=True)
    }


@pytest.mark.parametrize("form", ["images", "parquet", "npz"])
def test_every_form_gives_the_same_examples(tmp_path, form):
    write(tmp_path / "mine", form)
    folder, quarter = str(tmp_path / "mine"), replace(ONE_PART, validation_fraction=0.25)
    data = load_own_data(folder, quarter, ("cat", "dog"))
    assert data.train.input_shape == (1, 6, 6)
    assert (len(data.train), len(data.report), data.group) == (9, 3, None)
    assert {image for image, _ in everything(data)} == {image.tobytes() for image in SCALED}
    pairs = {(i.tobytes(), str(n)) for i, n in zip(SCALED, LABELS, strict=True)}
    assert everything(data) == pairs


def test_classes_are_matched_by_name(tmp_path):
    write(tmp_path / "mine", "npz")
    folder = str(tmp_path / "mine")
    assert load_own_data(folder, ONE_PART).train.class_names == ("cat", "dog")
    run = ("fox", "dog", "cat")
    data = load_own_data(folder, ONE_PART, run)
    assert data.train.class_names == run
    assert everything(data) == everything(load_own_data(folder, ONE_PART))
    refused(tmp_path / "mine", "has the class(es) dog, which the run does not", ("cat", "fox"))


def test_the_held_out_examples_depend_on_the_seed_only(tmp_path):
    write(tmp_path / "mine", "images")

    def held_out(seed):
        load_own_data.cache_clear()
        settings = DataSettings(seed=seed)
        return load_own_data(str(tmp_path / "mine"), settings).report.inputs.tobytes()

    assert held_out(0) == held_out(0) != held_out(1)


def refused(folder, words, classes=()):
    with pytest.raises(DataError) as error:
        load_own_data(str(folder), ONE_PART, classes)
    message = str(error.value)
    assert words in message and str(folder) in message and "\n" not in message


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": PIXELS}, "has no labels: its columns are x;"),
        ({"pictures": [b"x"] * 12, "y": LABELS}, "no images, numbers or texts to learn from"),
        ({"x": PIXELS, "y": LABELS[:3]}, "has columns of different lengths (x 12, y 3)"),
        ({"x": PIXELS, "y": LABELS.astype(object)}, "cannot be read"),
        ({"x": PIXELS[:0], "y": LABELS[:0]}, "has 0 examples"),
    ],
)
def test_archives_that_do_not_fit(tmp_path, arrays, words):
    np.savez(tmp_path / "a.npz", **arrays)
    refused(tmp_path, words)
    np.savez(tmp_path / "b.npz", other=PIXELS)
    refused(tmp_path, "NPZ files without a common array")


def test_images_and_arrays_of_different_sizes(tmp_path):
    write(tmp_path / "images", "images")
    Image.fromarray(PIXELS[0, :3]).save(tmp_path / "images" / "cat" / "99.png")
    refused(tmp_path / "images", "images of different sizes, 6x6 grey and 6x3 grey")
    write(tmp_path / "mixed", "npz")
    np.savez(tmp_path / "mixed" / "z.npz", x=PIXELS[:, :3], y=LABELS)
    refused(tmp_path / "mixed", "arrays of different kinds, (6, 6) uint8 in one.npz and (3, 6)")
