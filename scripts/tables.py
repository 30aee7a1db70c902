"""What the scripts show of their records: tables, which a page can take, and one picture."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from records import Record
from rich import box
from rich.console import Console
from rich.table import Table

Row = Mapping[str, Any]
NO_GROUPS = "no-groups"
"""How the names of families begin whose oracle is conventional federated learning."""


def show(rows: Sequence[Row], title: str = "") -> None:
    """One table, in Markdown; numbers to the right, with four digits."""
    table = Table(title=title or None, box=box.MARKDOWN)
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*map(cell, row.values()))
    console = Console()
    (console if console.is_terminal else Console(width=250)).print(table)


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if pd.isna(value):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_table(lines: Any, path: Path, columns: Sequence[str] | None = None) -> None:
    """Lines of the same figures as CSV, four digits each."""
    pd.DataFrame(lines, columns=columns).round(4).convert_dtypes().to_csv(path, index=False)


def table_of(records: Sequence[Record], **orders: Iterable[str]) -> pd.DataFrame:
    """A row for each record; the columns that are named in these orders, then by seed."""
    places = {key: {name: i for i, name in enumerate(order)} for key, order in orders.items()}
    return pd.DataFrame(records).sort_values(
        [*orders, "seed"],
        key=lambda column: (
            column.map(places.get(str(column.name), {}).get, na_action="ignore")
            if column.name in places
            else column
        ),
        ignore_index=True,
    )


def spread(runs: pd.DataFrame, figure: str) -> str:
    """In per cent the mean, and the standard deviation of the seeds' means if there are several."""
    of_seeds = 100 * runs.groupby("seed")[figure].mean()
    shown = f"{100 * runs[figure].mean():.1f}"
    return f"{shown} ± {of_seeds.std():.1f}" if len(of_seeds) > 1 else shown


def gaps_to_oracle(runs: pd.DataFrame, key: str) -> pd.Series:
    """Points of accuracy above the oracle's run of the same seed; NaN if there is none.

    Where there are no groups, conventional federated learning may take its place.
    """
    run = ["data", "family", "seed"]
    flat = runs["family"].str.startswith(NO_GROUPS)
    oracle, federated = (
        runs[run].join(runs[runs[key] == rule].set_index(run)["accuracy"], on=run)["accuracy"]
        for rule in ("oracle", "federated")
    )
    return 100 * (runs["accuracy"] - oracle.fillna(federated.where(flat)))


def draw(runs: pd.DataFrame, key: str, path: Path) -> None:
    """Accuracy against the oracle by family and method, and in how many runs groups are exact."""
    from matplotlib.figure import Figure

    runs = runs.assign(gap=gaps_to_oracle(runs, key))
    by_data = list(runs.groupby("data", sort=False))
    heights = [some["family"].nunique() + 4 for _, some in by_data]
    figure = Figure(figsize=(11, 0.36 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (data, some) in zip(axes, by_data, strict=True):
        draw_gaps(axis, some, key)
        axis.set_title(f"{data}: points of accuracy against the oracle (runs with exact groups)")
    figure.savefig(path, dpi=110)


def draw_gaps(axis: Any, runs: pd.DataFrame, key: str) -> None:
    """One data set's map: a row for each family, a column for each method."""
    families, names = runs["family"].unique(), runs[key].unique()
    for (family, name), cell in runs.groupby(["family", key]):
        exact, gap = cell["exact"].dropna(), cell["gap"].mean()
        label = "-" if np.isnan(gap) else f"{gap.round(1) + 0.0:+.1f}"
        label += f"\n({exact.sum()}/{len(exact)})" if len(exact) else ""
        ink = "white" if gap < -15 else "black"
        place = list(names).index(name), list(families).index(family)
        axis.text(*place, label, ha="center", va="center", fontsize=7, color=ink)
    gaps = runs.pivot_table("gap", "family", key, dropna=False).reindex(families, columns=names)
    image = axis.imshow(gaps, cmap="RdYlGn", vmin=-20, vmax=20, aspect="auto")
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.set_yticks(range(len(families)), families)
    axis.figure.colorbar(image, ax=axis, shrink=0.5)
