"""The peers' table: one line for each method over all its runs."""

import re
from typing import Any

import numpy as np
import pandas as pd
from families.planted import are_worse
from tables import spread

ROUNDING = 1e-9
"""Accuracies that differ by less are the same."""


def summary_lines(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """One line for each data set and method.

    Not all methods have run everywhere: beside a method's accuracy stands how it differs from
    cflower's on the very same federations and seeds, and where clients alone were measured, too,
    how many clients are served worse.
    """
    run = ["data", "family", "seed"]
    alone = runs[runs["method"] == "isolated"].reindex(columns=[*run, "clients"])  # newer records
    runs = runs.join(alone.set_index(run)["clients"].rename("alone"), on=run)
    ours = runs[runs["method"] == "cflower"].set_index(run)["accuracy"]
    gains = runs["accuracy"] - runs[run].join(ours, on=run)["accuracy"]
    methods = runs.assign(gain=gains).groupby(["data", "method"], sort=False)
    return [
        {"data": data, "method": method, **summary(some, beside=method != "cflower")}
        for (data, method), some in methods
    ]


def summary(runs: pd.DataFrame, beside: bool) -> dict[str, Any]:
    """One method's figures, if so asked beside cflower's."""
    exact, gain = runs["exact"].dropna(), runs["gain"]
    beside = beside and bool(gain.notna().all())
    megabytes = (runs["down"] + runs["up"]) / 1e6
    return {
        "runs": len(runs),
        "exact": str(exact.sum()) if len(exact) else "-",
        "accuracy": spread(runs, "accuracy"),
        "less cflower's": spread(runs, "gain") if beside else "-",
        "better, worse": f"{sum(gain > ROUNDING)}, {sum(gain < -ROUNDING)}" if beside else "-",
        "worst client": spread(runs, "worst"),
        "worse than alone": worse_than_alone(runs),
        "MB": f"{megabytes.median():.1f}",
        "server s": f"{runs['server_seconds'].median():.2f}",
        "clients s": f"{runs['client_seconds'].median():.1f}",
        "given": given(runs["given"]),
    }


def worse_than_alone(runs: pd.DataFrame) -> str:
    """How many clients are served worse than alone, of how many."""
    known = runs.dropna(subset="alone")
    if known.empty:
        return "-"
    own, alone = (np.array(known[column].sum()) for column in ("clients", "alone"))
    return f"{are_worse(own[:, 0], alone[:, 0], own[:, 1]).sum()} of {len(own)}"


def given(texts: pd.Series) -> str:
    """What a method was given in these runs; the k of IFCA differs from one to another."""
    different = texts.unique()
    if len(different) > 1:
        different = pd.unique(texts.map(lambda text: re.sub(r"k = \d+", "k", text)))
    return " or ".join(different) or "-"
