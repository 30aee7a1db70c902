"""What `battery.py` shows: the table in the terminal, one CSV, one picture."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.table import Table

from federations.planted import BASELINES, CRITERIA, EVERY, FLAT, MODELS

Record = dict[str, Any]
"""One run: what it was and how right it was."""

COLUMNS = (
    "data", "family", "criterion", "seed", "rounds", "groups", "clusters", "exact", "splits",
    "undone", "moves", "false_splits", "adjusted_rand_index", "last_split", "accuracy", "seconds",
)  # fmt: skip


class Results:
    """All records, by what they are of."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = sorted(
            records,
            key=lambda r: (
                list(MODELS).index(r["data"]),
                list(EVERY).index(r["family"]),
                list(CRITERIA).index(r["criterion"]),
                r["seed"],
            ),
        )

    def of(self, data: str, family: str, criterion: str) -> list[Record]:
        """The runs of one row of the table."""
        wanted = (data, family, criterion)
        return [r for r in self.records if (r["data"], r["family"], r["criterion"]) == wanted]

    def names(self, column: str, **given: str) -> list[str]:
        """The values that occur in a column, in the order of the tables."""
        fitting = (r for r in self.records if all(r[k] == v for k, v in given.items()))
        return list(dict.fromkeys(r[column] for r in fitting))

    def criteria(self, **given: str) -> list[str]:
        """The criteria that occur; the baselines only where there is nothing else."""
        names = self.names("criterion", **given)
        return [name for name in names if name not in BASELINES] or names

    def accuracy(self, rows: Sequence[Record], criterion: str) -> float | None:
        """Mean accuracy of a criterion in the same settings and seeds as these rows.

        Without groups the oracle is conventional federated learning.
        """
        if criterion == "oracle" and EVERY[rows[0]["family"]].keys.items() >= FLAT.items():
            criterion = "federated"
        seeds = {row["seed"] for row in rows}
        others = self.of(rows[0]["data"], rows[0]["family"], criterion)
        values = [other["accuracy"] for other in others if other["seed"] in seeds]
        return mean(values) if len(values) == len(seeds) else None


def sentence(record: Record) -> str:
    """One run in a few words."""
    right = "exact" if record["exact"] else f"ARI {record['adjusted_rand_index']:.2f}"
    wrong = f", {record['false_splits']} false" if record["false_splits"] else ""
    wrong += f", {record['moves']} moves" if record["moves"] else ""
    return (
        f"{right}, {record['clusters']} clusters in {record['splits']} splits{wrong}, "
        f"accuracy {record['accuracy']:.4f}, {record['seconds']:.0f} s"
    )


def print_table(results: Results, console: Console) -> None:
    """One table for each data set: a row for each family and criterion."""
    for data in results.names("data"):
        table = Table("family", "criterion", title=data)
        for name in ("runs", "exact", "false splits", "ARI", "last split"):
            table.add_column(name, justify="right")
        for name in ("accuracy", "oracle", "federated"):
            table.add_column(name, justify="right")
        for family in results.names("family", data=data):
            for criterion in results.criteria(data=data, family=family):
                rows = results.of(data, family, criterion)
                last = [row["last_split"] for row in rows if row["last_split"] is not None]
                table.add_row(
                    family,
                    criterion,
                    str(len(rows)),
                    str(sum(row["exact"] for row in rows)),
                    str(sum(row["false_splits"] for row in rows)),
                    f"{mean(row['adjusted_rand_index'] for row in rows):.3f}",
                    f"{mean(last):.1f}" if last else "-",
                    *(
                        "-" if value is None else f"{value:.4f}"
                        for value in (
                            results.accuracy(rows, name)
                            for name in (criterion, "oracle", "federated")
                        )
                    ),
                )
        console.print(table)
    console.print("last split: mean round. accuracy: of judged clients, held-out examples.")


def table_lines(results: Results) -> list[Record]:
    """One line for each run."""
    return [{column: record[column] for column in COLUMNS} for record in results.records]


def draw(results: Results, path: Path) -> None:
    """Per family: the share of exact runs, and accuracy lost against the oracle."""
    from matplotlib.figure import Figure

    all_data = results.names("data")
    families = {data: results.names("family", data=data) for data in all_data}
    heights = [len(names) + 1.5 for names in families.values()]
    width = max(len(results.criteria(data=data)) for data in all_data)
    figure = Figure(
        figsize=(11, sum(heights) * max(0.3, 0.13 * (width + 1)) + 1.2), layout="constrained"
    )
    axes = figure.subplots(len(all_data), 2, squeeze=False, height_ratios=heights, sharey="row")
    for (exact, gap), (data, names) in zip(axes, families.items(), strict=True):
        draw_bars(exact, results, data, results.criteria(data=data), share_exact, "{:.0f}")
        exact.set(title=f"{data}: exact recoveries", xlabel="% of runs", xlim=(0, 110))
        shown = dict.fromkeys([*results.criteria(data=data), "federated"])
        draw_bars(gap, results, data, list(shown), gap_to_oracle, "{:+.1f}")
        gap.set(title=f"{data}: accuracy against the oracle", xlabel="percentage points")
        gap.axvline(0, color="black", linewidth=0.8)
        gap.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        exact.set_yticks(range(len(names)), names)
        exact.set_ylim(len(names) - 0.4, -0.6)
    figure.savefig(path, dpi=130)


def share_exact(results: Results, rows: Sequence[Record]) -> float | None:
    """In per cent."""
    return 100 * mean(row["exact"] for row in rows)


def gap_to_oracle(results: Results, rows: Sequence[Record]) -> float | None:
    """In percentage points, on the seeds that the oracle was run with; None if there are none."""
    gaps = [
        row["accuracy"] - oracle
        for row in rows
        if (oracle := results.accuracy([row], "oracle")) is not None
    ]
    return 100 * mean(gaps) if gaps else None


COLOURS: Mapping[str, str] = {"federated": "0.75", "oracle": "0.4"}


def draw_bars(
    axis: Any,
    results: Results,
    data: str,
    criteria: list[str],
    value_of: Callable[[Results, Sequence[Record]], float | None],
    form: str,
) -> None:
    """A bar for each family and criterion; a missing value says so."""
    names, thick = results.names("family", data=data), 0.8 / len(criteria)
    for i, criterion in enumerate(criteria):
        colour = COLOURS.get(criterion, f"C{list(CRITERIA).index(criterion)}")
        for j, family in enumerate(names):
            rows = results.of(data, family, criterion)
            value = value_of(results, rows) if rows else None
            y = j - 0.4 + thick * (i + 0.5)
            label = "" if j else criterion
            axis.barh(y, value or 0, 0.9 * thick, color=colour, label=label)
            text = "not run" if value is None else form.format(value)
            left = value is not None and value < 0
            axis.annotate(
                text,
                (value or 0, y),
                (-3 if left else 3, 0),
                textcoords="offset points",
                ha="right" if left else "left",
                va="center",
                fontsize=7,
                color="0.3",
            )
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    axis.margins(x=0.2)
    axis.spines[["top", "right"]].set_visible(False)
