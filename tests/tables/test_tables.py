"""Tables as hospitals have them: what is used, what is said, and what leaves a client."""

import gzip
import json
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from cflower.config import RunConfig
from cflower.data.client_data import client_data
from cflower.data.own_data import load_own_data
from cflower.data.settings import DataSettings
from cflower.tables.agreement import agree, as_text, problem_with, read
from cflower.tables.description import describe
from cflower.tables.preparation import inputs_of
from tests.command import cflower

SITES = 4


def every_row(table):
    return describe(table, np.arange(len(table)))


def site(number, rows=60):
    """A table with everything: numbers, a category, a date, an id, one value at all of a site."""
    rng = np.random.default_rng(number)
    age, hb, crp = rng.normal(60, 12, rows), rng.normal(13, 1.5, rows), rng.gamma(2, 8, rows)
    sick = 0.05 * (age - 60) - 0.6 * (hb - 13) + 0.05 * (crp - 16) + rng.normal(0, 0.5, rows) > 0
    return pd.DataFrame(
        {
            "visit": pd.date_range("2025-01-01", periods=rows).astype(str),
            "patient": [f"P{number}{row:03d}" for row in range(rows)],
            "age": age.round(1),
            "hb": pd.Series(hb.round(2)).mask(rng.random(rows) < 0.1),
            "crp": crp.round(1),
            "sex": np.where(rng.random(rows) < 0.5, "m", "d" if number == 3 else "f"),
            "hospital": f"H{number}",
            "outcome": np.where(sick, "sick", "well"),
        }
    )


def write(folder, change=lambda table, number: table, ending="csv", save=None):
    folder.mkdir(exist_ok=True)
    for number in range(SITES):
        path = folder / f"site-{number}.{ending}"
        table = change(site(number), number)
        save(table, path) if save else table.to_csv(path, index=False)
    return folder


def run(folder, out, rounds=3, **keys):
    chosen = {"min-available-nodes": SITES, "model": "linear", **keys}
    more = " ".join(f"{key}={value!r}" for key, value in chosen.items())
    config = (
        f"dataset='{folder}' label-column='outcome' partitioner='natural-id' shift='none' "
        f"natural-id-column='file' num-server-rounds={rounds} {more}"
    )
    return cflower("simulate", "--clients", SITES, "--out", out, "-c", config)


@pytest.mark.slow
@given(st.lists(st.integers(5, 40), min_size=1, max_size=5), st.integers(0, 9), st.booleans())
def test_inputs_are_scikit_learns_on_the_pooled_rows(sizes, seed, gaps):
    rng = np.random.default_rng(seed)
    tables = []
    for place, size in enumerate(sizes):
        numbers = pd.Series(rng.normal(50 + place, 10, size))
        kinds = rng.choice(["a", "b", f"only {place}"], size)
        tables.append(pd.DataFrame({"x": numbers, "kind": kinds}))
        if gaps:
            tables[-1].loc[0] = None
    described = {str(place): every_row(table) for place, table in enumerate(tables)}
    preparation = agree(described, scaled=True, named=False)
    pooled = pd.concat(tables, ignore_index=True)
    found = inputs_of(json.loads(as_text(preparation)), pooled)
    counts = [size - gaps for size in sizes]
    if max(counts) <= 3 * np.median(counts):  # else the largest counts for three usual ones
        filled = pooled[["x"]].fillna(pooled["x"].mean())
        known = StandardScaler().fit(pooled[["x"]].dropna())
        ends = known.transform(filled)[:, 0].clip(-10, 10)
        np.testing.assert_allclose(found[:, 0], ends, atol=1e-5)
    known = set()
    for table in tables:
        counts = table["kind"].value_counts()
        known |= {*counts.index[counts > 1]}
    assert set(preparation["categories"].get("kind", ())) == known
    assert (found[:, 1:].sum(axis=1) == pooled["kind"].isin(known)).all()


@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 99), st.floats(1e-6, 1e6), st.floats(0.001, 0.5))
def test_no_column_outweighs_the_others_and_its_unit_makes_no_difference(seed, unit, share):
    rng = np.random.default_rng(seed)
    tables = [
        pd.DataFrame(
            {
                "usual": rng.normal(size=50),
                "rare": rng.random(50) < share,  # a 1 among many zeros
                "at some": (rng.random(50) if place > 6 else np.zeros(50)) * unit,
                "nearly constant": np.where(rng.random(50) < share, rng.random(50), 0),
                "at few strong": rng.random(50) * (1.0 if place > 6 else 1e-4),
            }
        )
        for place in range(10)
    ]

    def inputs_in(units):
        described = {str(n): every_row(table * units) for n, table in enumerate(tables)}
        preparation = agree(described, scaled=True, named=False)
        return inputs_of(preparation, pd.concat(tables) * units)

    found = inputs_in(1.0)
    assert np.abs(found).max() <= 10
    assert np.ptp(found[:, 2]) < 5  # it has the scale of the clients where it differs
    np.testing.assert_allclose(inputs_in(1000.0), found, rtol=1e-4, atol=1e-4)


def test_a_value_that_no_client_had_and_a_missing_one_are_zeros():
    table = pd.DataFrame({"kind": ["a", "b", "a", "b"]})
    preparation = agree({"": every_row(table)}, scaled=True, named=False)
    rows = pd.DataFrame({"kind": ["b", "new", None], "more": 1})
    assert inputs_of(preparation, rows).tolist() == [[0, 1], [0, 0], [0, 0]]


def test_no_value_of_a_single_row_leaves_a_client():
    table = pd.DataFrame(
        {
            "name": ["Ann", "Bob", "Cid", "Dee"],
            "ward": ["east", "east", "west", "Ann's own"],
            "age": [61.5, None, None, None],
        }
    )
    said = json.dumps(every_row(table))
    assert not any(word in said for word in ("Ann", "Bob", "Cid", "Dee", "west", "61"))
    assert "east" in said


def test_what_is_no_input_is_said_with_the_reason():
    tables = [site(number).drop(columns="outcome") for number in range(SITES)]
    described = {str(number): every_row(table) for number, table in enumerate(tables)}
    preparation = agree(described, scaled=True, named=False)
    assert list(preparation["numbers"]) == ["age", "hb", "crp"]
    assert preparation["categories"] == {"sex": ["d", "f", "m"]}
    assert preparation["unused"] == {
        "visit": "a date",
        "patient": "an id: every value differs",
        "hospital": "the same in every row of a client",
    }


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2, None], "number"),
        (["1", " 2.5", None], "number"),
        ([True, False, True], "number"),
        (["a", "b", None], "text"),
        (["2025-01-31", "01.02.2025", None], "date"),
        (["2025-01-31 10:15", "2025-01-31T10:15:00Z", None], "date"),
        ([pd.Timestamp("2025-01-31"), None, None], "date"),
        ([None, None, None], "empty"),
    ],
)
def test_the_kind_of_a_column(values, kind):
    assert every_row(pd.DataFrame({"x": values}))["x"]["kind"] == kind


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("patient_id", [7, 3, 9], True),
        ("PID", [7, 3, 9], True),
        ("x", range(100, 120), True),  # consecutive: a count of the rows
        ("age", [61, 58, 70], False),
        ("platelets", [150_000, 210_000, 98_000], False),
        ("patient_id", [7, 7, 9], False),
        ("weight_id", [7.5, 3.25, 9.0], False),
    ],
)
def test_a_number_is_an_id_only_if_it_counts_or_names_the_rows(name, values, expected):
    assert every_row(pd.DataFrame({name: list(values)}))[name]["id"] is expected
    if expected:  # a user may name it all the same
        described = {"": every_row(pd.DataFrame({name: list(values)}))}
        assert list(agree(described, scaled=True, named=True)["numbers"]) == [name]


def test_a_client_with_another_unit_or_a_lie_does_not_change_the_common_scale():
    tables = [pd.DataFrame({"x": np.random.default_rng(n).normal(60, 12, 50)}) for n in range(8)]
    described = {str(n): every_row(table) for n, table in enumerate(tables)}
    honest = agree(described, scaled=True, named=False)["numbers"]["x"]
    pooled = np.concatenate([table["x"] for table in tables])
    assert honest == pytest.approx([pooled.mean(), pooled.std()])
    for lie in ({"mean": 1e30}, {"variance": 1e60}, {"mean": 60_000.0, "count": 10**12}):
        described["0"] = {"x": described["1"]["x"] | lie}
        mean, deviation = agree(described, scaled=True, named=False)["numbers"]["x"]
        assert abs(mean - honest[0]) < 2 and abs(deviation - honest[1]) < 2


def test_one_client_that_names_many_values_or_columns_takes_nothing_from_the_others():
    honest = {str(n): every_row(pd.DataFrame({"sex": ["f", "m"] * 5})) for n in range(5)}
    values = [f"v{n}" for n in range(50)]
    liar = {"sex": honest["0"]["sex"] | {"values": values}}
    liar |= {f"c{n}": {"kind": "empty"} for n in range(999)}
    preparation = agree(honest | {"liar": liar}, scaled=True, named=False)
    assert {"f", "m"} <= set(preparation["categories"]["sex"])
    assert len(preparation["categories"]["sex"]) == 50 and len(preparation["unused"]) <= 50
    towns = [pd.DataFrame({"town": [f"t{n}-{k}" for k in range(20)] * 2}) for n in range(5)]
    described = {str(n): every_row(table) for n, table in enumerate(towns)}
    unused = agree(described, scaled=True, named=True)["unused"]
    assert unused == {"town": "texts: 100 different values"}


def test_a_table_that_does_not_fit_is_refused_with_the_column():
    tables = {str(number): every_row(site(number)) for number in range(SITES)}
    preparation = agree(tables, scaled=True, named=False)
    assert problem_with(tables["0"], preparation) == ""
    lacking = every_row(site(1).drop(columns="crp"))
    assert "lacks the column 'crp'" in problem_with(lacking, preparation)
    other = every_row(site(1).assign(hb="high"))
    assert "its column 'hb' has texts, and that of the others numbers" in problem_with(
        other, preparation
    )
    empty = every_row(site(1).assign(hb=None))
    assert problem_with(empty, preparation) == ""  # its hb becomes the mean of the others


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        '{"a": {"kind": "number"}}',
        '{"a": {"kind": "other"}}',
        '{"a": {"kind": "number", "count": -1, "mean": 0, "variance": 0, "id": false}}',
        '{"a": {"kind": "number", "count": 1, "mean": 1e300, "variance": 0, "id": false}}',
        '{"a": {"kind": "text", "rows": 3}}',
        '{"a": {"kind": "text", "different": 1, "rows": 3, "values": ["\\u001b[31m"]}}',
        json.dumps({f"c{n}": {"kind": "empty"} for n in range(1001)}),
    ],
)
def test_a_description_of_another_form_is_not_read(text):
    assert read(text) is None


def test_from_csv_with_everything_one_line_says_what_is_used(tmp_path):
    done = run(write(tmp_path / "data"), tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    said = (
        "2 classes: sick, well; 4 inputs: age, hb, crp, sex (d, f, m); not used: visit (a date), "
        "patient (an id: every value differs), hospital (the same in every row of a client)."
    )
    assert said in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    examples = json.loads((folder / "examples.json").read_text())
    assert examples["input_shape"] == [6]
    preparation = examples["preparation"]
    config = json.loads((folder / "config.json").read_text())["config"]
    settings = RunConfig.read(config).part(DataSettings)
    trained = [client_data(settings, n, SITES, preparation=as_text(preparation)) for n in range(4)]
    rows = np.concatenate([data.train.inputs for data in trained])
    known = rows[:, :3]
    np.testing.assert_allclose(known[:, [0, 2]].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(known[:, [0, 2]].std(axis=0), 1, atol=1e-5)
    assert json.loads((folder / "summary.json").read_text())["metrics"]["accuracy"] > 0.8


def gz(table, path):
    path.write_bytes(gzip.compress(table.to_csv(index=False).encode()))


def packed(table, path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("export.csv", table.to_csv(index=False))


FORMS = {
    "csv": None,
    "csv.gz": gz,
    "zip": packed,
    "tsv": lambda table, path: table.to_csv(path, index=False, sep="\t"),
    "CSV": lambda table, path: table.to_csv(path, index=False, sep=";", decimal=","),
    "parquet": lambda table, path: table.to_parquet(path, index=False),
}


@pytest.mark.parametrize("ending", FORMS)
def test_every_form_of_a_table_gives_the_same_inputs_beside_other_files(tmp_path, ending):
    folder = write(tmp_path / "data", ending=ending, save=FORMS[ending])
    for name in ("README.txt", "codebook.pdf", "~$site-0.xlsx", ".DS_Store"):
        (folder / name).write_bytes(b"\0other")
    settings = DataSettings(
        dataset=str(folder),
        label_column="outcome",
        partitioner="natural-id",
        natural_id_column="file",
        shift="none",
    )
    data = client_data(settings, 1, SITES)
    expected = site(1)
    assert data.train.class_names == ("sick", "well")
    rows = np.concatenate([part.inputs for part in (data.train, data.decide, data.report)])
    assert rows[:, 0].sum() == pytest.approx(expected["age"].sum(), rel=1e-5)
    assert data.table["sex"]["values"] == ["f", "m"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, n: t.drop(columns="crp") if n == 1 else t, "site-1.csv lacks 'crp'"),
        (lambda t, n: t.head(0) if n == 1 else t, "has no rows in site-1.csv"),
        (lambda t, n: t.rename(columns=str.upper) if n == 3 else t, "site-3.csv lacks 'age'"),
        (
            lambda t, n: t.assign(hb=t.hb.astype(object).where(t.index > 0, "?")) if n == 2 else t,
            "column 'hb' has '?' in row 2 of site-2",
        ),
        (
            lambda t, n: t.assign(crp=t.crp.where(t.index != 5, np.inf)) if n == 2 else t,
            "column 'crp' has 'inf' in row 7 of site-2",
        ),
    ],
)
def test_a_fault_at_one_site_is_named_with_its_file_row_column_and_value(tmp_path, change, words):
    done = run(write(tmp_path / "data", change), tmp_path / "runs")
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("Error")]
    assert words in error


def test_excel_files_are_refused_with_what_to_do(tmp_path):
    folder = write(tmp_path / "data")
    (folder / "site-9.xlsx").write_bytes(b"PK")
    done = run(folder, tmp_path / "runs")
    assert "(site-9.xlsx): save each sheet as CSV (UTF-8)." in done.stderr


def test_classes_that_differ_in_spelling_or_are_at_some_sites_only_are_named(tmp_path):
    def spelled(table, number):
        return table.assign(outcome=table.outcome.str.upper()) if number == 3 else table

    done = run(write(tmp_path / "data", spelled), tmp_path / "runs")
    assert "4 classes: SICK, WELL, sick, well;" in done.stdout
    assert "Warning: 'SICK' and 'sick' are different classes here: if they are one" in done.stdout
    assert "Classes at some clients only: SICK (site-3), WELL (site-3), sick (" in done.stdout


def test_blanks_around_a_class_are_no_other_class(tmp_path):
    def blank(table, number):
        return table.assign(outcome=table.outcome + " ") if number == 3 else table

    done = run(write(tmp_path / "data", blank), tmp_path / "runs")
    assert "2 classes: sick, well;" in done.stdout and "Warning" not in done.stdout


def test_a_node_with_its_own_folder_is_prepared_as_the_run_says(tmp_path):
    folder = write(tmp_path / "data")
    settings = DataSettings(label_column="outcome")
    alone = load_own_data(str(folder), settings, ("sick", "well"))
    assert set(alone.table) == {"visit", "patient", "age", "hb", "crp", "sex", "hospital"}
    common = agree({"a": alone.table, "b": alone.table}, scaled=True, named=False)
    data = load_own_data(str(folder), settings, ("sick", "well"), as_text(common))
    assert data.table is None and data.train.input_shape == (10,)  # four hospitals in one folder
    assert abs(data.train.inputs[:, :3].mean()) < 0.01


def test_a_resumed_run_prepares_tables_as_before(tmp_path):
    folder = write(tmp_path / "data")
    whole = run(folder, tmp_path / "runs", rounds=4)
    assert whole.returncode == 0, whole.stderr
    first = run(folder, tmp_path / "halves", rounds=2)
    assert first.returncode == 0, first.stderr
    (half,) = (tmp_path / "halves").iterdir()
    resumed = run(folder, tmp_path / "halves", rounds=4, resume=half.name)
    assert resumed.returncode == 0, resumed.stderr


def test_the_run_that_a_try_leaves_is_exported_with_its_preparation(tmp_path):
    folder = write(tmp_path / "data")
    config = (
        f"dataset='{folder}' label-column='outcome' partitioner='natural-id' shift='none' "
        "natural-id-column='file' model='linear' num-server-rounds=2 min-available-nodes=4"
    )
    done = cflower("try", "--clients", SITES, "--out", tmp_path / "runs", "-c", config)
    assert done.returncode == 0, done.stderr
    (tried,) = (tmp_path / "runs").iterdir()
    model = tmp_path / "model.safetensors"
    exported = cflower("export", tried, "--client", "site-1", "--output", model)
    assert exported.returncode == 0, exported.stderr
    assert (tmp_path / "model.py").is_file()


def test_a_newcomer_with_a_table_is_prepared_as_the_run_says(tmp_path):
    def turned(table, number):
        other = table.outcome.map({"sick": "well", "well": "sick"})
        return table.assign(outcome=other) if number > 1 else table

    folder = write(tmp_path / "data", turned)
    done = run(folder, tmp_path / "runs", rounds=15)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    (tmp_path / "new").mkdir()
    turned(site(9), 9).to_csv(tmp_path / "new" / "rows.csv", index=False)
    done = cflower("assign", folder, "--data", tmp_path / "new")
    split = json.loads((folder / "summary.json").read_text())["splits"]
    assert done.returncode == (0 if split else 1), done.stderr
    assert "shape" not in done.stderr
