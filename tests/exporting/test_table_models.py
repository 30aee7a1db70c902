"""A table's model used where cflower is not installed: from a DataFrame to predictions."""

import json
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import load_file

from cflower.learning.models import build_model
from cflower.tables.preparation import inputs_of
from tests.command import cflower, in_new_process
from tests.exporting.test_files import needs_onnx
from tests.tables.test_tables import SITES, run, site, write

WITHOUT_CFLOWER = """
import runpy, sys

sys.modules["cflower"] = None  # importing it fails
import pandas as pd

predict = runpy.run_path(sys.argv[1])["predict"]
print(predict(pd.read_csv(sys.argv[2])).to_csv())
assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    done = run(write(folder / "data"), folder / "runs", model="mlp")
    assert done.returncode == 0, done.stderr
    return folder


def exported(trained, place, name):
    place.mkdir(exist_ok=True)
    (folder,) = (trained / "runs").iterdir()
    done = cflower("export", folder, "--cluster", "0", "--output", place / name)
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["model.safetensors", pytest.param("model.onnx", marks=needs_onnx)]
)
def test_a_data_frame_gives_the_predictions_of_the_run_without_cflower(trained, tmp_path, name):
    said, folder = exported(trained, tmp_path, name)
    assert f"python {tmp_path / 'model.py'} rows.csv" in said
    rows = site(2)
    rows.loc[0, "sex"] = "never seen"
    rows[["sex", "age", "crp", "hb"]].to_csv(tmp_path / "rows.csv", index=False)
    printed = in_new_process(WITHOUT_CFLOWER, tmp_path / "model.py", tmp_path / "rows.csv")
    found = pd.read_csv(StringIO(printed), index_col=0)
    model = build_model("mlp", (6,), 2, 0).eval()
    model.load_state_dict(load_file(folder / "models" / "0.safetensors"))
    preparation = json.loads((folder / "examples.json").read_text())["preparation"]
    expected = model.forward(as_tensor(inputs_of(preparation, rows))).softmax(1).detach().numpy()
    assert list(found.columns) == ["predicted", "sick", "well"]
    np.testing.assert_allclose(found[["sick", "well"]], expected, atol=1e-5)
    assert (found["predicted"] == np.array(["sick", "well"])[expected.argmax(1)]).all()


def as_tensor(inputs):
    import torch

    return torch.from_numpy(inputs)


def test_a_wrong_table_is_refused_with_the_column_and_the_row(trained, tmp_path):
    exported(trained, tmp_path, "model.safetensors")
    code = (tmp_path / "model.py").read_text()
    scope = {"__name__": "model", "__file__": str(tmp_path / "model.py")}
    exec(compile(code, "model.py", "exec"), scope)
    with pytest.raises(ValueError, match="the table lacks the column 'crp'"):
        scope["predict"](site(0).drop(columns="crp"))
    with pytest.raises(ValueError, match="column 'age' has 'old' in 7: expected a finite number"):
        scope["predict"](site(0).astype({"age": object}).replace({"age": {site(0).age[7]: "old"}}))


def test_the_card_names_columns_classes_and_how_well_it_does(trained, tmp_path):
    exported(trained, tmp_path, "model.safetensors")
    card = (tmp_path / "model.safetensors.md").read_text(encoding="utf-8")
    assert "| columns | age, hb, crp, sex (d, f, m); in the units of" in card
    assert "scaled by their mean and deviation over all clients" in card
    assert "| classes | 0 = sick, 1 = well |" in card
    assert "| class | held out | clients with it | sensitivity |" in card
    assert "runpy.run_path('model.py')" in card and "cflower.learning" not in card


def test_a_model_that_each_client_scales_by_itself_has_no_program_and_the_card_says_why(tmp_path):
    done = run(write(tmp_path / "data"), tmp_path / "runs", standardise="client")
    assert done.returncode == 0, done.stderr
    exported(tmp_path, tmp_path / "out", "model.safetensors")
    assert not (tmp_path / "out" / "model.py").exists()
    card = (tmp_path / "out" / "model.safetensors.md").read_text(encoding="utf-8")
    assert "each client scales its inputs by their own mean and deviation, which it keeps" in card


@pytest.mark.slow
def test_a_model_of_numbers_predicts_numbers(tmp_path):
    def stay(table, number):
        days = 10 + table.age / 10 + (table.sex == "m")
        return table.assign(sex=table.sex.replace("d", "f"), outcome=days.round(2))

    folder = write(tmp_path / "data", stay)
    done = run(folder, tmp_path / "runs", rounds=8, task="regression", **{"learning-rate": 0.03})
    assert done.returncode == 0, done.stderr
    exported(tmp_path, tmp_path / "out", "model.safetensors")
    rows = folder / f"site-{SITES - 1}.csv"
    printed = in_new_process(WITHOUT_CFLOWER, tmp_path / "out" / "model.py", rows)
    found = pd.read_csv(StringIO(printed), index_col=0)["predicted"]
    assert (found - pd.read_csv(rows)["outcome"]).abs().mean() < 0.5
