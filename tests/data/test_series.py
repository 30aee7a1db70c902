from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cflower.data.client_data import load_client_data
from cflower.data.columns import Roles
from cflower.data.own_data import OwnData, load_own_data
from cflower.data.settings import DataSettings
from cflower.errors import DataError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Ten windows of two axes and three moments: axis a has 0, 1, 2, axis b 10, 11, 12."""
    window = {"a0": 0.0, "b0": 10.0, "a1": 1.0, "b1": 11.0, "a2": 2.0, "b2": 12.0}
    rows = [{"who": f"p{n % 2}", "label": n // 2 % 2, **window} for n in range(10)]
    pd.DataFrame(rows).to_csv(tmp_path / "train.csv", index=False)
    return tmp_path


def test_rows_of_numbers_become_series_of_so_many_channels(table: Path) -> None:
    settings = DataSettings(
        dataset=str(table),
        partitioner="natural-id",
        natural_id_column="who",
        shift="none",
        series_channels=2,
    )
    examples = load_client_data(settings, 1, 2).train
    assert examples.input_shape == (2, 3)
    np.testing.assert_array_equal(examples.inputs[0], [[0, 1, 2], [10, 11, 12]])
    own = load_own_data(OwnData(str(table), roles=Roles(natural_id="who", series_channels=2)))
    np.testing.assert_array_equal(own.train.inputs[0], examples.inputs[0])


def test_rows_that_are_no_multiple_of_the_channels(table: Path) -> None:
    settings = DataSettings(dataset=str(table), shift="none", input_columns="a0,b0,a1")
    assert load_client_data(settings, 0, 2).train.input_shape == (3,)
    with pytest.raises(DataError, match=r"series-channels = 2 does not fit .*\(3,\)"):
        load_client_data(
            DataSettings(
                dataset=str(table), shift="none", input_columns="a0,b0,a1", series_channels=2
            ),
            0,
            2,
        )
