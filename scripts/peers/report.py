"""The peers' tables: a line for each method over all its runs, and one for each family."""

import re
from typing import Any

import numpy as np
import pandas as pd
from families.planted import are_worse
from scipy.stats import t as student_t
from tables import spread

YARDSTICKS = (
    "isolated",
    "isolated as long",
    "federated",
    "federated as long",
    "fine-tuned",
    "fine-tuned as long",
)
"""What a client could have without clusters."""
CLOSE = 0.5
"""Points of accuracy that make no difference to a reader."""
COSTS = {
    "trainings": "trainings a client",
    "down": "MB down",
    "up": "MB up",
    "client_seconds": "CPU seconds of the clients",
}
"""What a run cost, by column, and what a table calls it."""
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
        "trainings": trainings(runs),
        "MB": f"{megabytes.median():.1f}",
        "server s": f"{runs['server_seconds'].median():.2f}",
        "clients s": f"{runs['client_seconds'].median():.1f}",
        "given": given(runs["given"]),
    }


def trainings(runs: pd.DataFrame) -> str:
    """The trainings of a client in a run: the median."""
    if "trainings" not in runs or runs["trainings"].isna().any():
        return "-"
    return f"{(runs['trainings'] / runs['clients'].map(len)).median():.1f}"


def accuracy_lines(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """One line for each family: every method's accuracy in per cent, the mean over its seeds.

    In bold what is within `CLOSE` points of the best that is not given the true groups. The last
    lines are the mean over the families, and medians of a run: of what it cost.
    """
    table = by_family(runs, "accuracy")
    first = nearly_first(table)
    lines = [
        {"data": data, "family": family, "found": found(runs, family)}
        | {m: in_bold(row[m], first.loc[(data, family), m]) for m in table}
        for (data, family), row in table.iterrows()
    ]
    sent = runs.assign(down=runs["down"] / 1e6, up=runs["up"] / 1e6)
    if {"trainings", "clients"} <= set(runs):
        sent["trainings"] /= runs["clients"].map(len)
    costs = sent.groupby("method")[[column for column in COSTS if column in sent]].median()
    sums = {
        "mean": table.mean(skipna=False).map("{:.1f}".format),
        "in bold": first.sum().astype(str),
        **{COSTS[column]: costs[column].map("{:.1f}".format) for column in costs},
    }
    last = ({"data": "", "family": f, "found": ""} | dict(sums[f][table.columns]) for f in sums)
    return [*lines, *last]


def client_lines(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """One line for each family: the mean and the median of its clients, however large they are.

    In per cent, the mean over the seeds; in bold where the mean by client is within `CLOSE` points
    of the best that is not given the true groups. The last lines are the means over the families.
    """
    own = runs["clients"].map(lambda some: [accuracy for accuracy, _ in some])
    runs = runs.assign(mean=own.map(np.mean), median=own.map(np.median))
    means, medians = by_family(runs, "mean"), by_family(runs, "median")
    first, lines = nearly_first(means), []
    for (data, family), row in means.iterrows():
        here, median = first.loc[(data, family)], medians.loc[(data, family)]
        texts = {m: f"{in_bold(row[m], here[m])}, {in_bold(median[m], False)}" for m in means}
        lines.append({"data": data, "family": family} | texts)
    sums = {
        "mean": {
            m: f"{means[m].mean(skipna=False):.1f}, {medians[m].mean(skipna=False):.1f}"
            for m in means
        },
        "in bold": first.sum().astype(str).to_dict(),
    }
    return [*lines, *({"data": "", "family": name} | sums[name] for name in sums)]


def by_family(runs: pd.DataFrame, figure: str) -> pd.DataFrame:
    """A share of every family and method in per cent, the mean over the seeds."""
    return 100 * runs.pivot_table(figure, ["data", "family"], "method", sort=False)


def nearly_first(table: pd.DataFrame) -> pd.DataFrame:
    """What is within `CLOSE` points of the row's best, without the true groups' models."""
    others = table.drop(columns=["oracle", "true-groups"], errors="ignore")
    return table.ge(others.max(axis=1) - CLOSE, axis=0) & table.columns.isin(others)


def found(runs: pd.DataFrame, family: str) -> str:
    """In how many runs cflower's clusters are the true groups."""
    exact = runs[(runs["family"] == family) & (runs["method"] == "cflower")]["exact"]
    return f"{exact.astype(bool).sum()} of {len(exact)}" if len(exact) else "-"


def in_bold(value: float, bold: bool) -> str:
    """A figure as a page shows it; - if it was not measured."""
    text = "-" if np.isnan(value) else f"{value:.1f}"
    return f"**{text}**" if bold else text


def family_lines(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """One line for each family: every method's accuracy less cflower's on the same seeds.

    In points, the mean and half of a 95 % interval (Student's t over seeds). The last lines are the
    mean over all families, and without the family that differs most from zero, for each method.
    """
    wide = 100 * runs.pivot_table("accuracy", ["data", "family", "seed"], "method", sort=False)
    gaps = wide.sub(wide["cflower"], axis=0).drop(columns="cflower").dropna(axis=1, how="all")
    families = gaps.groupby(["data", "family"], sort=False)
    means, count = families.mean(), families.count()
    half = families.std() / np.sqrt(count) * student_t.ppf(0.975, (count - 1).clip(lower=1))
    lines = [
        {"data": data, "family": family}
        | {m: interval(means, half, (data, family), m) for m in gaps}
        for data, family in means.index
    ]
    without = {m: means[m].drop(means[m].abs().idxmax()).mean() for m in gaps if len(means) > 1}
    mean = {"data": "", "family": "all, the mean"} | {m: f"{means[m].mean():+.1f}" for m in gaps}
    rest = {m: f"{value:+.1f}" for m, value in without.items()}
    return [*lines, mean, {"data": "", "family": "without the largest"} | rest]


def interval(means: pd.DataFrame, half: pd.DataFrame, row: Any, method: str) -> str:
    """A mean in points with half of its interval, as far as there are both."""
    mean, spread_ = means.loc[row, method], half.loc[row, method]
    if np.isnan(mean):
        return "-"
    return f"{mean:+.1f}" if np.isnan(spread_) else f"{mean:+.1f} ± {spread_:.1f}"


def client_rows(runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each client of each run: its name, accuracy and number of reported examples."""
    known = runs.dropna(subset="names")
    rows = known[["data", "family", "method", "seed"]].assign(
        client=known["names"], figures=known["clients"]
    )
    rows = rows.explode(["client", "figures"], ignore_index=True)
    figures = pd.DataFrame(rows.pop("figures").tolist(), columns=["accuracy", "held_out"])
    return pd.concat([rows, figures], axis=1)


def served_worse(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """One line for each family: how many clients cflower serves worse than another method does.

    Beyond two standard errors of a difference between two shares of a client's reported examples.
    """
    rows = client_rows(runs)
    keys = ["data", "family", "seed", "client"]
    ours = rows[rows["method"] == "cflower"].set_index(keys)
    pairs = rows[rows["method"].isin(YARDSTICKS)].join(ours["accuracy"].rename("ours"), on=keys)
    pairs = pairs.dropna(subset="ours")
    figures = (pairs[column].to_numpy(float) for column in ("ours", "accuracy", "held_out"))
    pairs = pairs.assign(worse=are_worse(*figures))
    found = pairs.groupby(["data", "family", "method"], sort=False)["worse"].agg(["sum", "size"])
    shown = (found["sum"].astype(str) + " of " + found["size"].astype(str)).unstack()
    lines = shown.reindex(columns=[m for m in YARDSTICKS if m in shown]).fillna("-")
    total = pairs.groupby("method")["worse"].agg(["sum", "size"])
    last = {m: f"{total.loc[m, 'sum']} of {total.loc[m, 'size']}" for m in lines}
    every = [{"data": d, "family": f} | line.to_dict() for (d, f), line in lines.iterrows()]
    return [*every, {"data": "", "family": "all"} | last]


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
