"""Nodes that bring tables of their own: the server knows of them what the roll call says."""

import json

import pandas as pd
import pytest
from flwr.app import Context

from cflower import simulate
from cflower.client_app import app
from cflower.config import RunConfig
from cflower.errors import CFlowerError
from cflower.server_app import run as run_server
from cflower.simulation.inline_grid import InlineGrid
from tests.tables.test_tables import SITES, site


class OwnFolders(InlineGrid):
    """Clients with a folder each, as SuperNodes with a data-path have."""

    folders = ()

    def __init__(self, *arguments, **keys):
        super().__init__(*arguments, **keys)
        for folder, context in zip(self.folders, self._contexts.values(), strict=True):
            context.node_config.clear()
            context.node_config |= {"client-id": folder.name, "data-path": str(folder)}


def run(tmp_path, change=lambda table, number: table, **keys):
    folders = []
    for number in range(SITES):
        folders.append(tmp_path / f"site-{number}")
        folders[-1].mkdir()
        change(site(number), number).to_csv(folders[-1] / "rows.csv", index=False)
    grid = type("Folders", (OwnFolders,), {"folders": tuple(folders)})
    values = {"min_available_nodes": SITES, "node_timeout": 5.0, **keys}
    config = RunConfig(
        output_dir=str(tmp_path / "runs"),
        label_column="outcome",
        shift="none",
        model="linear",
        num_server_rounds=4,
        **values,
    )
    said = []

    def serve(grid, context: Context):
        return run_server(grid, context, said.append)

    summary = simulate(app, SITES, server_app=serve, run_config=config.as_keys(), grid_type=grid)
    return summary, "\n".join(said)


@pytest.mark.slow
def test_their_tables_are_prepared_alike_though_each_knows_its_own_only(tmp_path):
    summary, said = run(tmp_path)
    assert "4 inputs: age, hb, crp, sex (d, f, m); not used: visit (a date), patient (" in said
    assert summary["clusters"] == {"0": [f"site-{number}" for number in range(SITES)]}
    assert summary["metrics"]["accuracy"] > 0.7
    (folder,) = (tmp_path / "runs").iterdir()
    preparation = json.loads((folder / "examples.json").read_text())["preparation"]
    every = pd.concat([site(number) for number in range(SITES)])
    assert preparation["numbers"]["age"] == pytest.approx(
        [every.age.mean(), every.age.std()], abs=2
    )


def test_a_site_without_a_column_that_the_others_have_is_named(tmp_path):
    def lacking(table, number):
        return table.drop(columns="crp") if number == 2 else table

    summary, _ = run(tmp_path, lacking, min_available_nodes=3)
    assert "site-2" not in summary["clusters"]["0"] and len(summary["clusters"]["0"]) == 3


def test_a_site_that_spells_the_classes_otherwise_is_refused_with_the_reason(tmp_path, caplog):
    def loud(table, number):
        return table.assign(outcome=table.outcome.str.upper()) if number == 1 else table

    summary, _ = run(tmp_path, loud, min_available_nodes=3)
    assert len(summary["clusters"]["0"]) == 3
    assert "they differ in spelling only, so spell them alike" in caplog.text


@pytest.mark.slow
def test_if_all_are_refused_the_error_says_what_to_correct(tmp_path):
    with pytest.raises(CFlowerError) as error:
        run(tmp_path, lambda table, number: table.assign(hb=["?", "x", *table.hb[2:]]))
    text = str(error.value)
    assert "column 'hb' has '?' in row 2" in text or "column 'hb' has 'x' in row 3" in text
    assert "Correct the data of the refused clients" in text and "num-supernodes" not in text
    assert len(text) < 900


@pytest.mark.slow
def test_figures_of_all_sites_come_from_counts(tmp_path):
    summary, said = run(tmp_path, metric="auc")
    assert 0.5 < summary["pooled"]["own"]["auc"]["value"] <= 1
    assert "held-out examples of 4 clients together: AUC" in said


@pytest.mark.slow
def test_a_site_that_only_evaluates_is_measured_with_the_common_model_and_never_trains(tmp_path):
    summary, _ = run(tmp_path, evaluate_only="site-2")
    assert summary["not_placed"] == ["site-2"] and "site-2" not in summary["clusters"]["0"]
    line = summary["clients"]["site-2"]
    assert line["trainings"] == 0 and line["accuracy"] > 0.5
    assert summary["pooled"]["own"]["clients"] == SITES
