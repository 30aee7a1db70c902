import subprocess
import sys

import numpy as np
import pytest

from cflower.data.client_data import load_client_data, outline_of
from cflower.data.settings import DataSettings
from cflower.errors import ConfigError, DataError

DIGEST = """
from zlib import crc32
from cflower.data.client_data import load_client_data, outline_of
from cflower.data.settings import DataSettings
def digest(partition):
    settings = DataSettings(partitioner="dirichlet", shift="label-noise", seed=5)
    data = load_client_data(settings, partition, 4)
    parts = data.train.inputs, data.train.labels, data.validation.inputs, data.validation.labels
    return [crc32(part.tobytes()) for part in parts]
"""


def test_clients_share_out_the_digits() -> None:
    clients = [load_client_data(DataSettings(shift="none"), place, 10) for place in range(10)]
    assert sum(len(c.train) + len(c.validation) for c in clients) == 1797
    assert all(c.group is None for c in clients)
    assert all(c.train.input_shape == (1, 8, 8) for c in clients)


def test_groups_follow_the_partitions() -> None:
    settings = DataSettings(shift="rotation", num_groups=3, group_sizes="1,2,3")
    groups = [load_client_data(settings, place, 6).group for place in range(6)]
    assert groups == [0, 1, 1, 2, 2, 2]


def test_a_shift_changes_neither_the_deal_nor_the_hold_out() -> None:
    plain = load_client_data(DataSettings(shift="none"), 3, 4)
    turned = load_client_data(DataSettings(shift="rotation"), 3, 4)
    np.testing.assert_array_equal(
        plain.validation.inputs[..., ::-1, ::-1], turned.validation.inputs
    )
    np.testing.assert_array_equal(plain.train.labels, turned.train.labels)


@pytest.mark.slow
def test_same_in_another_process_and_order_without_flower_or_torch() -> None:
    namespace: dict[str, object] = {}
    exec(DIGEST, namespace)
    here = [namespace["digest"](place) for place in (0, 3)]  # type: ignore[operator]
    code = DIGEST + "last = digest(3); print([digest(0), last])\nimport sys\n"
    code += "assert not {'flwr', 'torch'} & sys.modules.keys()"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == str(here)


def test_kept_and_read_only() -> None:
    data = load_client_data(DataSettings(shift="none"), 0, 10)
    assert load_client_data(DataSettings(shift="none"), 0, 10) is data
    with pytest.raises(ValueError, match="read-only"):
        data.train.labels[0] = 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dataset": " "}, "dataset is empty"),
        ({"dataset_size": -1}, "dataset-size=-1, but expected a number >= 0"),
        ({"partitioner": "idd"}, "did you mean 'iid'"),
        ({"shift": "rotate"}, "did you mean 'rotation'"),
        ({"dirichlet_alpha": 0.0}, "dirichlet-alpha"),
        ({"shards_per_client": 0}, "shards-per-client"),
        ({"num_groups": 0}, "num-groups"),
        ({"validation_fraction": 1.0}, "validation-fraction"),
        ({"seed": -1}, "seed=-1"),
        ({"partitioner": "natural-id"}, "natural-id-column"),
        ({"missing_labels": "1;2"}, "set shift = 'label-subset'"),
    ],
)
def test_settings_out_of_range(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DataSettings(**changes)  # type: ignore[arg-type]


def test_no_such_partition() -> None:
    with pytest.raises(DataError, match="partition-id = 4 is none of 4"):
        load_client_data(DataSettings(shift="none"), 4, 4)


@pytest.mark.parametrize("shift", ["rotation", "label-permutation", "label-subset", "none"])
def test_an_outline_has_everything_but_the_pictures(shift: str) -> None:
    missing = "1,3;2,5" if shift == "label-subset" else ""
    settings = DataSettings(shift=shift, missing_labels=missing, partitioner="dirichlet")
    for place in (0, 5):
        whole, outline = load_client_data(settings, place, 6), outline_of(settings, place, 6)
        assert outline.group == whole.group
        for known, drawn in ((whole.train, outline.train), (whole.validation, outline.validation)):
            np.testing.assert_array_equal(known.labels, drawn.labels)
            assert known.inputs.shape == drawn.inputs.shape
