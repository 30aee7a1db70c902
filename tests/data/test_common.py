"""Arrays that one process makes and others read."""

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from cflower.data import decoding
from cflower.data.decoding import CommonArrays


def test_an_array_is_made_once_for_all_processes_of_a_folder(tmp_path):
    one, other, alone = (CommonArrays(10**6) for _ in range(3))
    one.folder = other.folder = tmp_path
    made = one.found_or_made(lambda: np.arange(3, dtype=np.uint8), b"a", b"bc")
    np.testing.assert_array_equal(other.found_or_made(pytest.fail, b"a", b"bc"), made)
    for key in ((b"ab", b"c"), (b"a",)):  # no two keys have one file
        assert other.found_or_made(lambda: np.zeros(1), *key).tolist() == [0.0]
    assert alone.found_or_made(lambda: np.ones(1), b"a", b"bc").tolist() == [1.0]


def test_without_room_every_process_makes_its_own(tmp_path):
    small, full = CommonArrays(most_bytes=2), CommonArrays(10**6)
    small.folder, full.folder = tmp_path, tmp_path / "missing"
    for arrays in (small, full):
        assert arrays.found_or_made(lambda: np.arange(3), b"key").tolist() == [0, 1, 2]
    assert not list(tmp_path.iterdir())


def test_pictures_are_opened_by_one_process(tmp_path, monkeypatch):
    arrays = [CommonArrays(10**6) for _ in range(2)]
    files = np.empty(4, dtype=object)
    for place in range(4):
        file = BytesIO()
        Image.fromarray(np.full((2, 2), place, np.uint8)).save(file, "PNG")
        files[place] = {"bytes": file.getvalue(), "path": None}
    decoded = []
    for one in arrays:
        one.folder = tmp_path
        monkeypatch.setattr(decoding, "PICTURES", one)
        for rows in ([3, 1], [1, 3]):
            decoded.append(decoding.decoded(files, np.array(rows), "some data", ("image",)))
        monkeypatch.setattr(decoding, "_opened", pytest.fail)
    assert [(one[:, 0, 0, 0] * 255).tolist() for one in decoded] == 2 * [[3, 1], [1, 3]]
    assert decoded[0].strides == decoded[2].strides
