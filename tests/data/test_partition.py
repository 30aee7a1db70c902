import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cflower.data.columns import Table
from cflower.data.partition import deal_out
from cflower.data.settings import DataSettings
from cflower.data.stored import Stored
from cflower.errors import DataError


def source(num, num_classes=4):
    labels = np.random.default_rng(0).permutation(np.arange(num) % num_classes)
    columns = {
        "image": np.zeros((num, 2, 2), np.uint8),
        "label": labels.astype(np.int64),
        "writer": np.array([f"writer {n % 6}" for n in range(num)]),
    }
    classes = {"label": tuple(f"class {n}" for n in range(num_classes))}
    table = Table("the source", columns, classes)
    return Stored.of(table, DataSettings(natural_id_column="writer"))


@settings(max_examples=15)
@given(
    st.sampled_from(["iid", "dirichlet", "shards", "natural-id"]),
    st.integers(1, 6),
    st.integers(0, 4).map(lambda k: 120 + 24 * k),
    st.integers(0, 3),
)
def test_partitions_are_disjoint_and_cover_the_source(partitioner, num_partitions, num, seed):
    chosen = DataSettings(partitioner=partitioner, natural_id_column="writer", seed=seed)
    parts = deal_out(source(num), num_partitions, chosen)
    assert len(parts) == num_partitions
    assert all(len(part) >= 2 for part in parts)
    dealt = np.concatenate(parts)
    assert len(np.unique(dealt)) == len(dealt)
    if partitioner == "natural-id":
        assert len(dealt) == num * num_partitions / 6
    elif partitioner == "shards":
        assert num - len(dealt) < 2 * num_partitions
    else:
        assert sorted(dealt) == list(range(num))
    again = deal_out(source(num), num_partitions, chosen)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_shards_hold_few_classes_and_dirichlet_depends_on_alpha():
    data = source(400)
    labels = data.labels

    def skew(**keys):
        parts = deal_out(data, 4, DataSettings(**keys))
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    shards = deal_out(data, 4, DataSettings(partitioner="shards"))
    assert all(len(set(labels[part])) <= 2 for part in shards)
    assert skew() < 0.4 < skew(partitioner="dirichlet", dirichlet_alpha=0.2)
    assert skew(partitioner="dirichlet", dirichlet_alpha=1000.0) < 0.4


def test_natural_ids_are_kept_together():
    data = source(120)
    by_writer = DataSettings(partitioner="natural-id", natural_id_column="writer")
    for place, part in enumerate(deal_out(data, 6, by_writer)):
        assert set(data.metadata_of("writer")[part]) == {f"writer {place}"}


@pytest.mark.parametrize("odd", [None, float("nan"), 3])
def test_an_example_without_a_natural_id_is_refused(odd):
    data = source(12)
    data.metadata["writer"][3] = odd
    by_writer = DataSettings(partitioner="natural-id", natural_id_column="writer")
    with pytest.raises(DataError, match="one text or whole number in every row"):
        deal_out(data, 2, by_writer)


@pytest.mark.parametrize(
    ("num_partitions", "options", "words"),
    [
        (13, {}, "12 examples cannot be dealt out to 13 clients"),
        (0, {}, "0 clients"),
        (6, {"partitioner": "dirichlet", "dirichlet_alpha": 0.001}, "larger dirichlet-alpha"),
        (6, {"partitioner": "shards", "shards_per_client": 3}, "use fewer shards"),
        (7, {"partitioner": "natural-id", "natural_id_column": "writer"}, "only 6 different"),
        (2, {"partitioner": "natural-id", "natural_id_column": "wrtr"}, "image, label, writer"),
    ],
)
def test_refused(num_partitions, options, words):
    with pytest.raises(DataError, match=words) as caught:
        deal_out(source(12), num_partitions, DataSettings(**options))
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
