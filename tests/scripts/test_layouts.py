"""Data sets in the folder layout that their authors give out."""

import numpy as np
import pytest
from PIL import Image

from cflower.data.client_data import load_client_data
from cflower.data.settings import DataSettings
from cflower.data.sources import load_source
from cflower.errors import CFlowerError


def bytes_image(seed, shape):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def refused(name, words):
    with pytest.raises(CFlowerError, match=words):
        load_source(DataSettings(f"reproduction.layouts:{name}"))


@pytest.mark.slow
def test_emnist_is_turned_upright(tmp_path, monkeypatch):
    refused("emnist", "EMNIST is not set")
    monkeypatch.setenv("EMNIST", str(tmp_path))
    refused("emnist", "no readable EMNIST byclass")
    raw = tmp_path / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = bytes_image(0, (5, 28, 28))
    labels = np.array([0, 10, 36, 61, 9], dtype=np.uint8)
    for name, header, array in (
        ("images-idx3", [0x803, 5, 28, 28], pixels),
        ("labels-idx1", [0x801, 5], labels),
    ):
        content = np.array(header, dtype=">i4").tobytes() + array.tobytes()
        (raw / f"emnist-byclass-train-{name}-ubyte").write_bytes(content)
    source = load_source(DataSettings("reproduction.layouts:emnist", 4))
    assert source.class_names == ("0", "9", "A", "a", "z")
    images = source.examples().inputs
    assert images.shape == (4, 1, 28, 28)
    for image, label in zip(images, source.labels, strict=True):
        place = ["0", "A", "a", "z", "9"].index(source.class_names[label])
        np.testing.assert_allclose(image[0] * 255, pixels[place].T, atol=1e-4)


def test_ham10000_is_read_by_lesion(tmp_path, monkeypatch):
    rows = ["lesion_id,image_id,dx,dx_type,age,sex,localization"]
    for number, kind in enumerate(["mel", "nv"] * 4):
        part = tmp_path / f"HAM10000_images_part_{1 + number % 2}"
        part.mkdir(exist_ok=True)
        Image.fromarray(bytes_image(number, (45, 60, 3))).save(part / f"ISIC_{number}.jpg")
        rows.append(f"HAM_{number // 2},ISIC_{number},{kind},histo,50,male,ear")
    monkeypatch.setenv("HAM10000", str(tmp_path))
    refused("ham10000", "HAM10000_metadata.csv")
    (tmp_path / "HAM10000_metadata.csv").write_text("\n".join(rows))
    name = "reproduction.layouts:ham10000"
    by_lesion = DataSettings(shift="none", dataset=name, natural_id_column="lesion_id")
    data = load_client_data(by_lesion, 0, 2)
    assert data.train.inputs.shape == (2, 3, 32, 32)  # of four; one decides, one is reported
    assert data.train.class_names == ("mel", "nv")
    (tmp_path / "HAM10000_images_part_1" / "ISIC_0.jpg").unlink()
    refused("ham10000", "ISIC_0")
