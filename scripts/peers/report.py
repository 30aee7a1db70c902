"""What `scripts/peers.py` shows: a table over all families, one line a run as CSV, one picture."""

import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from federations.planted import FAMILIES
from rich.console import Console
from rich.table import Table

from peers.contest import BROKEN, IFCA, NAMES, Record

METHODS = (*NAMES, *BROKEN)
LEFT_OUT = {"isolated", *IFCA} - {"ifca"}
"""Not in the table by family, which has too many columns to be read with them."""
ROUNDING = 1e-9
"""Accuracies that differ by less are the same."""
COLUMNS = (
    "data", "family", "method", "seed", "groups", "found", "exact", "adjusted_rand_index",
    "accuracy", "worst", "down", "up", "client_seconds", "server_seconds", "told",
)  # fmt: skip


def lines(records: Sequence[Record]) -> list[Record]:
    """One line for each run, in the order of the tables."""
    place = {name: i for i, name in enumerate((*FAMILIES, *METHODS))}
    order = sorted(
        records,
        key=lambda r: (
            r["data"],
            place.get(r["family"], 0),  # a federation that is none of the battery's: by its name
            r["family"],
            place[r["method"]],
            r["seed"],
        ),
    )
    rounded = ("accuracy", "worst", "adjusted_rand_index", "client_seconds", "server_seconds")
    return [
        {
            column: round(record[column], 4)
            if column in rounded and record[column] is not None
            else record[column]
            for column in COLUMNS
        }
        for record in order
    ]


def summary_lines(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One line for each method, over all its runs.

    Not all methods have run everywhere (IFCA with one model too few needs two groups): beside a
    method's accuracy stands how it differs from cflower's on the very same federations and seeds.
    """
    found = []
    for data in dict.fromkeys(r["data"] for r in records):
        of_data = [r for r in records if r["data"] == data]
        ours = {
            (r["family"], r["seed"]): r["accuracy"] for r in of_data if r["method"] == "cflower"
        }
        for method in (name for name in METHODS if any(r["method"] == name for r in of_data)):
            runs = [r for r in of_data if r["method"] == method]
            grouped = [r for r in runs if r["exact"] is not None]
            gains = {
                (r["family"], r["seed"]): r["accuracy"] - ours[r["family"], r["seed"]]
                for r in runs
                if (r["family"], r["seed"]) in ours
            }
            beside = method != "cflower" and len(gains) == len(runs)
            wins = [sum(sign * gain > ROUNDING for gain in gains.values()) for sign in (1, -1)]
            found.append(
                {
                    "data": data,
                    "method": method,
                    "runs": len(runs),
                    "exact": f"{sum(r['exact'] for r in grouped)}" if grouped else "-",
                    "accuracy": spread([(r["seed"], r["accuracy"]) for r in runs]),
                    "less cflower's": spread([(seed, gain) for (_, seed), gain in gains.items()])
                    if beside
                    else "-",
                    "better, worse": "{}, {}".format(*wins) if beside else "-",
                    "worst client": spread([(r["seed"], r["worst"]) for r in runs]),
                    "MB": f"{median(r['down'] + r['up'] for r in runs) / 1e6:.1f}",
                    "server s": f"{median(r['server_seconds'] for r in runs):.2f}",
                    "clients s": f"{median(r['client_seconds'] for r in runs):.1f}",
                    "told": given(runs),
                }
            )
    return found


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


def given(runs: Sequence[Record]) -> str:
    """What a method was given in these runs; the k of IFCA differs from one to another."""
    texts = dict.fromkeys(r["told"] for r in runs)
    if len(texts) > 1:
        texts = dict.fromkeys(re.sub(r"k = \d+", "k", text) for text in texts)
    return " or ".join(texts) or "-"


def print_table(records: Sequence[Record], console: Console) -> None:
    """The table in the terminal."""
    console.print(summary_table(records))
    console.print(
        "Accuracies in per cent, mean over runs ± standard deviation of the seeds' means; better, "
        "worse: runs, than cflower's; MB, s: medians of a run, training only, CPU time."
    )


def summary_table(records: Sequence[Record]) -> Table:
    """One row for each method."""
    rows = summary_lines(records)
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    return table


def markdown(records: Sequence[Record]) -> str:
    """The same table, and one of every family, for the documentation."""
    rows = summary_lines(records)
    text = ["| " + " | ".join(rows[0]) + " |", "| " + " | ".join("---" for _ in rows[0]) + " |"]
    text += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    for data in dict.fromkeys(r["data"] for r in records):
        of_data = [r for r in records if r["data"] == data]
        shown = {r["method"] for r in of_data} - LEFT_OUT
        names = [name for name in METHODS if name in shown]
        text += ["", f"| {data} | " + " | ".join(names) + " |"]
        text += ["| --- | " + " | ".join("---" for _ in names) + " |"]
        for family in (name for name in FAMILIES if any(r["family"] == name for r in of_data)):
            cells = [cell(of_data, family, name) for name in names]
            text += [f"| `{family}` | " + " | ".join(cells) + " |"]
    return "\n".join(text) + "\n"


def cell(records: Sequence[Record], family: str, method: str) -> str:
    """Accuracy of a method in a family with its spread, and how often it was exact."""
    runs = [r for r in records if (r["family"], r["method"]) == (family, method)]
    if not runs:
        return "-"
    accuracy = spread([(r["seed"], r["accuracy"]) for r in runs])
    grouped = [r["exact"] for r in runs if r["exact"] is not None]
    return f"{accuracy} ({sum(grouped)}/{len(grouped)})" if grouped else accuracy


def draw(records: Sequence[Record], path: Path) -> None:
    """Accuracy against the oracle by family and method; a dot where all groups are exact."""
    import numpy as np
    from matplotlib.figure import Figure

    everything = list(dict.fromkeys(r["data"] for r in records))
    heights = [len({r["family"] for r in records if r["data"] == data}) + 4 for data in everything]
    figure = Figure(figsize=(11, 0.36 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(everything), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, data in zip(axes, everything, strict=True):
        of_data = [r for r in records if r["data"] == data]
        names = [n for n in METHODS if n != "oracle" and any(r["method"] == n for r in of_data)]
        families = [name for name in FAMILIES if any(r["family"] == name for r in of_data)]
        gaps = np.full((len(families), len(names)), np.nan)
        for i, family in enumerate(families):
            for j, name in enumerate(names):
                gap = gap_to_oracle(of_data, family, name)
                gaps[i, j] = np.nan if gap is None else gap
                if gap is None:
                    continue
                label, ink = f"{round(gap, 1) + 0.0:+.1f}", "white" if gap < -15 else "black"
                axis.text(j, i, label, ha="center", va="center", fontsize=8, color=ink)
                runs = [r for r in of_data if (r["family"], r["method"]) == (family, name)]
                if all(r["exact"] for r in runs):
                    axis.plot(j + 0.38, i - 0.28, "o", color="black", markersize=4)
        image = axis.imshow(gaps, cmap="RdYlGn", vmin=-20, vmax=20, aspect="auto")
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set_yticks(range(len(families)), families)
        axis.set_title(
            f"{data}: accuracy against the oracle, in points; a dot: groups exact in every run"
        )
        figure.colorbar(image, ax=axis, shrink=0.5)
    figure.savefig(path, dpi=110)


def gap_to_oracle(records: Sequence[Record], family: str, method: str) -> float | None:
    """In percentage points, on the seeds that both have run."""
    by_seed = {
        name: {
            r["seed"]: r["accuracy"]
            for r in records
            if (r["family"], r["method"]) == (family, name)
        }
        for name in (method, "oracle")
    }
    shared = by_seed[method].keys() & by_seed["oracle"].keys()
    if not shared:
        return None
    return 100 * mean(by_seed[method][seed] - by_seed["oracle"][seed] for seed in shared)
