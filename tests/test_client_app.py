"""The ClientApp by itself: its answer to the roll call, and the modules that it loads."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from flwr.app import Context, Message, RecordDict

from cflower.client_app import app
from cflower.config import RunConfig
from cflower.data import own_data
from cflower.messages.roll_call import FACTS, ROLL_CALL
from tests.command import in_new_process


def roll_call(folder, **keys):
    """The answer of a SuperNode with a folder of its own."""
    node = {"client-id": "clinic-a", "data-path": str(folder)}
    config = RunConfig(shift="none", **keys).as_keys()
    message = Message(RecordDict(), 1005, ROLL_CALL)
    message.metadata.__dict__["_message_id"] = "the question"
    reply = app(message, Context(1, 1005, node, RecordDict(), config))
    return dict(reply.content.config_records[FACTS])


def write_rows(folder):
    rows = pd.DataFrame({"dose": range(20), "side": ["left"] * 20, "outcome": [0, 1] * 10})
    rows.to_csv(folder / "rows.csv", index=False)


@pytest.mark.parametrize("error", [MemoryError("12 GiB"), ValueError("odd\nlines"), KeyError(3)])
def test_whatever_its_data_raise_a_client_reports_its_name_and_cause(tmp_path, monkeypatch, error):
    def broken(*arguments):
        raise error

    write_rows(tmp_path)
    monkeypatch.setattr(own_data, "load_folder", broken)
    facts = roll_call(tmp_path, label_column="outcome")
    assert facts["client-id"] == "clinic-a"
    assert f"({type(error).__name__}: " in facts["problem"]
    assert "\n" not in facts["problem"]


def test_the_roles_of_columns_hold_for_its_own_folder(tmp_path):
    write_rows(tmp_path)
    facts = roll_call(tmp_path, label_column="outcome", input_columns="dose", group_column="side")
    assert facts["class-names"] == ["0", "1"]
    assert facts["input-shape"] == [1]
    # The true group is for the end of the run, not for its beginning.
    assert not [value for value in facts.values() if value == "left"]
    wrong = roll_call(tmp_path, label_column="outcom")
    assert "did you mean 'outcome'? Its columns are dose, side, outcome." in wrong["problem"]


READ = """
import sys
import cflower.client_app
from cflower.data.own_data import load_own_data
from cflower.data.settings import DataSettings
for folder in sys.argv[1:]:
    load_own_data(folder, DataSettings())
print(*sys.modules)
"""


@pytest.mark.slow
def test_a_message_does_not_load_what_it_does_not_need(tmp_path):
    folders = [str(tmp_path / form) for form in ("csv", "npz", "parquet")]
    for folder in folders:
        Path(folder).mkdir()
    rows = pd.DataFrame({"a": range(20), "label": [0, 1] * 10})
    rows.to_csv(tmp_path / "csv" / "rows.csv", index=False)
    rows.to_parquet(tmp_path / "parquet" / "rows.parquet")
    np.savez(tmp_path / "npz" / "a.npz", x=np.zeros((20, 3)), y=[0, 1] * 10)
    loaded = set(in_new_process(READ, *folders).split())
    assert "cflower.data.folders" in loaded
    slow = {"datasets", "flwr_datasets", "torchvision", "PIL", "pandas", "sklearn", "scipy.special"}
    slow |= {"pydantic", "cflower.strategy", "cflower.messages.roll_call"}
    assert loaded & slow == set()
