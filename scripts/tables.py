"""What the scripts show of their records: tables in the terminal and as Markdown, one picture."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from records import Record
from rich.console import Console
from rich.table import Table

Row = Mapping[str, Any]
NO_GROUPS = "no-groups"
"""How the names of families begin whose oracle is conventional federated learning."""


def show(rows: Sequence[Row], title: str = "", width: int = 150) -> None:
    """One table in the terminal; numbers to the right."""
    table = Table(title=title or None)
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*("-" if value is None else str(value) for value in row.values()))
    console = Console()
    (console if console.is_terminal else Console(width=width)).print(table)


def markdown(rows: Sequence[Row]) -> str:
    """The same for the documentation."""
    text = ["| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    text += ["| " + " | ".join(map(str, row.values())) + " |" for row in rows]
    return "\n".join(text) + "\n"


def names(records: Iterable[Record], key: str, order: Iterable[str] = ()) -> list[str]:
    """The values that occur, in this order, others behind."""
    there = dict.fromkeys(record[key] for record in records)
    first = [name for name in order if name in there]
    return [*first, *(name for name in there if name not in first)]


def spread(values: Sequence[tuple[int, float]]) -> str:
    """In per cent the mean, and the standard deviation of the seeds' means if there are several.

    Parameters
    ----------
    values : sequence of (int, float)
        Of each run, its seed and a figure.
    """
    of_seeds = [
        100 * mean(value for seed, value in values if seed == one)
        for one in dict.fromkeys(seed for seed, _ in values)
    ]
    shown = f"{100 * mean(value for _, value in values):.1f}"
    return f"{shown} ± {stdev(of_seeds):.1f}" if len(of_seeds) > 1 else shown


def by_family(
    records: Sequence[Record], key: str, columns: Sequence[str], order: Iterable[str]
) -> list[Row]:
    """A row for each family, a column for each method: accuracy, and how often it was exact."""

    def cell(family: str, method: str) -> str:
        runs = [r for r in records if (r["family"], r[key]) == (family, method)]
        if not runs:
            return "-"
        grouped = [r["exact"] for r in runs if r["exact"] is not None]
        exact = f" ({sum(grouped)}/{len(grouped)})" if grouped else ""
        return spread([(r["seed"], r["accuracy"]) for r in runs]) + exact

    return [
        {"family": f"`{family}`", **{method: cell(family, method) for method in columns}}
        for family in names(records, "family", order)
    ]


def gap_to_oracle(records: Sequence[Record], key: str, family: str, method: str) -> float | None:
    """In percentage points, on the seeds that both have run; None if there are none."""
    rule = "oracle"
    there = {r[key] for r in records if r["family"] == family}
    if family.startswith(NO_GROUPS) and rule not in there:
        rule = "federated"
    by_seed = {
        name: {r["seed"]: r["accuracy"] for r in records if (r["family"], r[key]) == (family, name)}
        for name in (method, rule)
    }
    shared = by_seed[method].keys() & by_seed[rule].keys()
    gaps = [by_seed[method][seed] - by_seed[rule][seed] for seed in shared]
    return 100 * mean(gaps) if gaps else None


def draw(records: Sequence[Record], key: str, methods: Sequence[str], path: Path) -> None:
    """Accuracy against the oracle by family and method, and in how many runs groups are exact."""
    import numpy as np
    from matplotlib.figure import Figure

    everything = names(records, "data")
    heights = [len({r["family"] for r in records if r["data"] == data}) + 4 for data in everything]
    figure = Figure(figsize=(11, 0.36 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(everything), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, data in zip(axes, everything, strict=True):
        of_data = [r for r in records if r["data"] == data]
        columns = [n for n in names(of_data, key, methods) if n != "oracle"] or ["oracle"]
        families = names(of_data, "family")
        gaps = np.full((len(families), len(columns)), np.nan)
        for i, family in enumerate(families):
            for j, name in enumerate(columns):
                gap = gap_to_oracle(of_data, key, family, name)
                runs = [r for r in of_data if (r["family"], r[key]) == (family, name)]
                exact = [r["exact"] for r in runs if r["exact"] is not None]
                label = [] if gap is None else [f"{round(gap, 1) + 0.0:+.1f}"]
                label += [f"({sum(exact)}/{len(exact)})"] if exact else []
                gaps[i, j] = np.nan if gap is None else gap
                ink = "white" if gap is not None and gap < -15 else "black"
                text = "\n".join(label)
                axis.text(j, i, text, ha="center", va="center", fontsize=7, color=ink)
        image = axis.imshow(gaps, cmap="RdYlGn", vmin=-20, vmax=20, aspect="auto")
        axis.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
        axis.set_yticks(range(len(families)), families)
        axis.set_title(f"{data}: points of accuracy against the oracle (runs with exact groups)")
        figure.colorbar(image, ax=axis, shrink=0.5)
    figure.savefig(path, dpi=110)
