"""Which column is what: label, inputs, group; how tables of numbers are read and scaled."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cflower.data.client_data import load_client_data
from cflower.data.own_data import load_own_data
from cflower.data.settings import DataSettings
from cflower.errors import CFlowerError, DataError

ROWS = 60


@pytest.fixture
def clinics(tmp_path):
    """Two measurements, two columns that could be labels, three wards in two clinics."""
    rng = np.random.default_rng(0)
    ward = np.arange(ROWS) % 3
    rows = {
        "age": rng.integers(20, 90, ROWS),
        "dose": rng.normal(100, 5, ROWS),
        "constant": 7,
        "label": rng.permutation(["no", "yes"] * (ROWS // 2)),
        "outcome": np.arange(ROWS) % 5,
        "ward": [f"ward {n}" for n in ward],
        "clinic": ward // 2,
    }
    pd.DataFrame(rows).to_csv(tmp_path / "rows.csv", index=False)
    return str(tmp_path)


def clients(folder, count=3, **settings):
    chosen = DataSettings(**({"shift": "none", "dataset": folder} | settings))
    return [load_client_data(chosen, place, count) for place in range(count)]


def test_label_and_inputs_are_those_that_are_named(clinics):
    for data in clients(clinics, label_column="outcome", input_columns="dose, age"):
        assert data.train.class_names == tuple("01234")
        assert data.train.input_shape == (2,)
        assert 80 < data.train.inputs[:, 0].mean() < 120  # dose comes first, as it is named first
    unnamed = clients(clinics)[0].train
    assert unnamed.class_names == ("no", "yes")
    assert unnamed.input_shape == (8,)  # age, dose, constant, outcome, clinic, and three wards


def test_the_group_is_known_and_never_an_input(clinics):
    settings = {"partitioner": "natural-id", "natural_id_column": "ward"}
    dealt = clients(clinics, group_column="clinic", **settings)
    assert [data.group for data in dealt] == ["0", "0", "1"]
    assert [data.train.input_shape for data in dealt] == [(4,)] * 3
    assert [data.group for data in clients(clinics, **settings)] == [None] * 3
    (everything,) = clients(clinics, 1, group_column="clinic")
    assert everything.group == "0"  # as of two of three rows


def test_a_node_of_its_own_has_the_same_roles(clinics):
    columns = {"label_column": "outcome", "input_columns": "age,dose", "group_column": "clinic"}
    settings = DataSettings(shift="none", standardise="client", **columns)
    data = load_own_data(clinics, settings)
    assert (data.group, data.train.num_classes, data.train.input_shape) == ("0", 5, (2,))
    np.testing.assert_allclose(data.train.inputs.mean(axis=0), 0, atol=1e-5)


def test_standardised_by_the_training_part_of_every_client(clinics):
    names = {"input_columns": "age,dose,constant"}
    plain, scaled = clients(clinics, **names), clients(clinics, standardise="client", **names)
    for before, after in zip(plain, scaled, strict=True):
        mean, deviation = before.train.inputs.mean(axis=0), before.train.inputs.std(axis=0)
        deviation[2] = 1
        for part in ("train", "decide", "report"):
            expected = (getattr(before, part).inputs - mean) / deviation
            np.testing.assert_allclose(getattr(after, part).inputs, expected, atol=1e-4)
        assert not after.train.inputs[:, 2].any()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"label_column": "outcom"}, "did you mean 'outcome'? Its columns are age, dose, const"),
        ({"input_columns": "age,doze"}, "did you mean 'dose'?"),
        ({"input_columns": "age,label"}, "'label', which is the label, group, topic or natural"),
        ({"input_columns": "clinic", "group_column": "clinic"}, "a model must not see it"),
        ({"group_column": "hospital"}, "group-column = 'hospital' is no column of"),
        ({"dataset": "digits", "group_column": "writer"}, "Its columns are image, label."),
        ({"dataset": "digits", "standardise": "client"}, "is for tables of numbers, but inputs"),
    ],
)
def test_columns_that_do_not_fit_are_refused_in_one_sentence(clinics, settings, words):
    with pytest.raises(CFlowerError) as refused:
        clients(clinics, **settings)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_number_that_is_none_is_named(clinics):
    file = Path(clinics) / "rows.csv"
    file.write_text(file.read_text().replace("\n2", '\n"2,0"', 1))
    with pytest.raises(DataError, match=r"'age' has '2,0.?' in row \d+, and numbers in most"):
        load_own_data(clinics, DataSettings())
    assert clients(clinics, input_columns="dose")[0].train.input_shape == (1,)


def test_arrays_of_an_archive_by_name(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"features": rng.normal(size=(12, 3)), "outcome": np.arange(12) % 2}
    np.savez(tmp_path / "a.npz", **arrays, site=["north"] * 12)
    columns = {"label_column": "outcome", "input_columns": "features", "group_column": "site"}
    settings = DataSettings(shift="none", **columns)
    data = load_own_data(str(tmp_path), settings)
    assert (data.train.input_shape, data.train.num_classes, data.group) == ((3,), 2, "north")
    with pytest.raises(DataError, match=r"'outcom' is no column .* Its columns are features, outc"):
        load_own_data(str(tmp_path), replace(settings, label_column="outcom"))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_thousands_of_columns_take_no_longer_than_their_numbers(tmp_path, form):
    table = np.random.default_rng(0).normal(size=(100, 5000))
    rows = pd.DataFrame(table, columns=[f"c{n}" for n in range(5000)])
    rows = rows.assign(label=np.arange(100) % 3)
    write = rows.to_csv if form == "csv" else rows.to_parquet
    write(tmp_path / f"rows.{form}", index=False)
    start = time.process_time()
    data = load_own_data(str(tmp_path), DataSettings())
    assert time.process_time() - start < 3
    assert data.train.inputs.shape == (80, 5000)


@pytest.fixture
def table(tmp_path):
    """Ten windows of two axes and three moments: axis a has 0, 1, 2, axis b 10, 11, 12."""
    window = {"a0": 0.0, "b0": 10.0, "a1": 1.0, "b1": 11.0, "a2": 2.0, "b2": 12.0}
    rows = [{"person": f"p{n % 2}", "label": n // 2 % 2, **window} for n in range(10)]
    pd.DataFrame(rows).to_csv(tmp_path / "train.csv", index=False)
    return tmp_path


def test_rows_of_numbers_become_series_of_so_many_channels(table):
    by_person = {"partitioner": "natural-id", "natural_id_column": "person"}
    settings = DataSettings(dataset=str(table), shift="none", series_channels=2, **by_person)
    examples = load_client_data(settings, 1, 2).train
    assert examples.input_shape == (2, 3)
    np.testing.assert_array_equal(examples.inputs[0], [[0, 1, 2], [10, 11, 12]])
    settings = DataSettings(natural_id_column="person", series_channels=2)
    own = load_own_data(str(table), settings)
    np.testing.assert_array_equal(own.train.inputs[0], examples.inputs[0])


def test_rows_that_are_no_multiple_of_the_channels(table):
    settings = DataSettings(dataset=str(table), shift="none", input_columns="a0,b0,a1")
    assert load_client_data(settings, 0, 2).train.input_shape == (3,)
    with pytest.raises(DataError, match=r"series-channels = 2 does not fit .*\(3,\)"):
        load_client_data(replace(settings, series_channels=2), 0, 2)
