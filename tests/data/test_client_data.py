from zlib import crc32

import numpy as np
import pytest

from cflower.data.client_data import KeptData, client_data, load_client_data
from cflower.data.examples import Examples
from cflower.data.preview import MOST_COUNTED, preview
from cflower.data.settings import DataSettings
from cflower.errors import DataError
from tests.command import in_new_process


def digest(partition):
    settings = DataSettings(partitioner="dirichlet", shift="label-noise", seed=5)
    data = load_client_data(settings, partition, 4)
    parts = [a for e in (data.train, data.decide, data.report) for a in (e.inputs, e.labels)]
    return [crc32(part.tobytes()) for part in parts]


def test_a_shift_changes_neither_the_deal_nor_the_hold_out():
    plain = load_client_data(DataSettings(shift="none"), 3, 4)
    turned = load_client_data(DataSettings(shift="rotation"), 3, 4)
    np.testing.assert_array_equal(plain.report.inputs[..., ::-1, ::-1], turned.report.inputs)
    np.testing.assert_array_equal(plain.train.labels, turned.train.labels)


@pytest.mark.slow
def test_same_in_another_process_and_order_without_flower_or_torch():
    code = """
import sys
from tests.data.test_client_data import digest
last = digest(3)
print([digest(0), last])
assert not {'flwr', 'torch'} & sys.modules.keys()
"""
    assert in_new_process(code) == str([digest(0), digest(3)])


def test_kept_and_read_only():
    data = load_client_data(DataSettings(shift="none"), 0, 10)
    assert load_client_data(DataSettings(shift="none"), 0, 10) is data
    with pytest.raises(ValueError, match="read-only"):
        data.train.labels[0] = 1


def test_what_is_kept_is_bounded_by_bytes():
    settings = DataSettings(shift="none")
    one = load_client_data(settings, 0, 10).num_bytes
    kept = KeptData(most_bytes=3 * one + one // 2)  # clients have about as much each
    first, *_ = (kept(settings, place, 10) for place in range(3))
    assert kept(settings, 0, 10) is first  # used last of the three, so that another one goes
    second = kept(settings, 1, 10)
    kept(settings, 3, 10)
    assert kept(settings, 0, 10) is first and kept(settings, 1, 10) is second
    small = KeptData(most_bytes=1)
    assert small(settings, 0, 10) is small(settings, 0, 10)  # the newest is kept in any case


def test_no_such_partition():
    with pytest.raises(DataError, match="partition-id = 4 is none of 4"):
        load_client_data(DataSettings(shift="none"), 4, 4)


@pytest.mark.parametrize("shift", ["rotation", "label-permutation", "label-subset", "none"])
def test_an_outline_has_everything_but_the_pictures(shift):
    missing = "1,3;2,5" if shift == "label-subset" else ""
    settings = DataSettings(shift=shift, missing_labels=missing, partitioner="dirichlet")
    for place in (0, 5):
        whole = load_client_data(settings, place, 6)
        outline = client_data(settings, place, 6, outline=True)
        assert outline.group == whole.group
        for part in ("train", "decide", "report"):
            known, drawn = getattr(whole, part), getattr(outline, part)
            np.testing.assert_array_equal(known.labels, drawn.labels)
            assert known.inputs.shape == drawn.inputs.shape


def test_without_label_counts_there_are_no_mean_examples():
    labels = np.arange(MOST_COUNTED + 1)
    rows = np.ones((len(labels), 3), np.float32)
    assert preview(Examples(rows, labels, tuple(map(str, labels)))) == {}
