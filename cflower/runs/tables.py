"""A run in the terminal: the cluster tree and the client × model table."""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import StringIO
from shutil import get_terminal_size
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from cflower.algorithm.tree import ROOT, Status
from cflower.metric import Metric
from cflower.ordering import counted, in_order, listed, only
from cflower.pooled import POOLED
from cflower.runs.findings import Row, finding, rows_of, ways_of, weighted
from cflower.runs.records import ClusterLine, PooledLine, Summary, sharing
from cflower.runs.together import by_class, is_shown, sentences

MOST_NAMES = 12
"""Members named on one line of the tree; the table has them all."""
MANY = 25
"""Clients above which the table is by cluster."""
TRIALS: dict[str | None, str] = {
    Status.CONFIRMED: ", confirmed",
    None: "",
}
HEADINGS = {
    **{"fl": "common\nmodel", "leaf": "cluster\nmodel", "own": "this\nrun"},
    **{"federated": "FL, all\nrounds", "isolated": "alone"},
    **{"tuned": "FL, then\nalone", "clustered": "clusters\nonly"},
}


class Printed(StringIO):
    """A text for standard output: where that takes no lines of boxes, rich draws them in ASCII."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of standard output."""
        return getattr(sys.stdout, "encoding", None) or "utf-8"


def as_text(content: Any, width: int = 0) -> str:
    """The output of rich without colours, as wide as the terminal if no ``width`` is given."""
    buffer, width = Printed(), width or get_terminal_size((100, 24)).columns
    Console(file=buffer, width=width, no_color=True, force_terminal=False).print(content)
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip().splitlines())


def run_view(
    summary: Summary, clusters: Mapping[str, ClusterLine], *, every: bool = False
) -> Group:
    """The output of `cflower show` for ``summary.json`` and the clusters of ``tree.json``.

    With ``every``, all clients are shown, however many.
    """
    tree, tables = cluster_tree(summary, clusters), model_tables(summary, every=every)
    together = pooled_tables(summary) if every or is_shown(summary) else []
    return Group(Text(finding(summary)), Text(), tree, Text(), tables, *together)


def best_rounds_in_words(best: Mapping[str, tuple[int, float]], metric: Metric) -> str:
    """The round with the best mean, of all clients and of each cluster, in one sentence.

    >>> best_rounds_in_words({"0": (7, 0.9), "0.0": (8, 0.95)}, Metric())
    'Best mean accuracy in a round: all clients 90.0% in round 7; 0.0 95.0% in round 8.'
    """
    words = [
        f"{'all clients' if name == ROOT else name} {metric.in_words(value)} in round {number}"
        for name, (number, value) in best.items()
    ]
    return f"Best mean {metric.name} in a round: {'; '.join(words)}." if words else ""


def pooled_tables(summary: Summary) -> list[Text | Table]:
    """The figures of all clients' examples together, under the models that serve them."""
    pooled = summary.pooled.get("own")
    if pooled is None:
        return []
    lines = [Text(), *map(Text, sentences(summary))]
    rows = [
        {key.replace(" ", "\n", 1): v for key, v in row.items()}
        for row in by_class(summary, pooled)
    ]
    return [*lines, table_of("each class (95% interval)", rows)]


def cluster_tree(summary: Summary, clusters: Mapping[str, ClusterLine]) -> Tree:
    """The clusters as a tree, each with its members and their mean of the leading metric."""
    branches, rows, metric = {"": Tree("", hide_root=True)}, rows_of(summary), summary.leading
    splits = {split.cluster: split for split in summary.lasting}
    for name in in_order(clusters):
        cluster = clusters[name]
        text = f"cluster {name}: {counted(len(cluster.members), 'client')}"
        if split := splits.get(name):
            text += f", split in round {split.round}{TRIALS[split.trial]}"
        elif not cluster.children:
            if others := sharing(clusters, name):
                text += f", its output layer its own, the other layers shared with {listed(others)}"
            together = summary.pooled.get(name)
            text += members_in_words(only(rows, cluster.members), metric, together)
        branches[name] = branches[name.rpartition(".")[0]].add(Text(text))
    return branches[""]


def members_in_words(
    members: Mapping[str, Row], metric: Metric, together: PooledLine | None
) -> str:
    """The members of a leaf, at most `MOST_NAMES` of them by name, and the mean of its model.

    F1 and AUC are of the members' examples ``together``, if these are counted.
    """
    if not members:
        return ", closed because its last client moved away"
    rows = members.values()
    if figure := getattr(together, metric.name, None) if metric.name in POOLED else None:
        return f", {metric.name} {metric.in_words(figure.value)}: {listed(members, MOST_NAMES)}"
    known = sum(row.values["leaf"] is not None for row in rows)
    words = f", mean {metric.name} {metric.in_words(weighted('leaf', rows))}" if known else ""
    if 0 < known < len(members):
        words += f" of {known} of them"
    if any(row.client.served.model != "leaf" for row in rows):
        words += f" ({metric.in_words(weighted('own', rows))} with the models that serve them)"
    return f"{words}: {listed(members, MOST_NAMES)}"


def model_tables(summary: Summary, *, every: bool = False) -> Group:
    """Every client under each model; of many clients a row for each cluster."""
    rows = rows_of(summary)
    if every or len(rows) <= MANY:
        return Group(client_table(rows, summary))
    hint = Text(f"`cflower show --all` shows each of the {len(rows)} clients.")
    return Group(cluster_table(rows, summary), hint)


def client_table(clients: Mapping[str, Row], summary: Summary) -> Table:
    """One row for each client; * marks the best of its models."""
    rows, metric, ways = [], summary.leading, ways_of(summary)
    for name, (client, group, values) in clients.items():
        level = client.best_cluster if summary.selection == "best" else None
        rows.append(
            {
                "client": name,
                "held\nout": shown(client.held_out, "g"),
                "cluster": client.cluster or "-",
                **scores(ways, [values[way] for way in ways], metric),
                "model\nof": shown(level),
                "own\nshare": shown(client.share, ".0%"),
                "true\ngroup": shown(group),
            }
        )
    return table_of(f"client × model ({metric.name}, * = best)", rows)


def cluster_table(clients: Mapping[str, Row], summary: Summary) -> Table:
    """One row for each cluster: means over its clients, and its worst client."""
    rows, metric, ways = [], summary.leading, ways_of(summary)
    for cluster in in_order(summary.clusters):
        members = list(only(clients, summary.clusters[cluster]).values())
        values = [row.values["own"] for row in members]
        worst = metric.worst(value for value in values if value is not None)
        held_out = sum(row.client.held_out or 0 for row in members)
        row = {"cluster": cluster, "clients": str(len(members)), "held\nout": f"{held_out:g}"}
        row |= scores(ways, [weighted(way, members) for way in ways], metric)
        rows.append(row | {"worst\nclient": metric.in_words(worst)})
    return table_of(f"cluster × model (mean {metric.name}, * = best)", rows)


def scores(ways: list[str], values: list[float | None], metric: Metric) -> dict[str, str]:
    """The values under each model in words, by heading."""
    return {HEADINGS[way]: words for way, words in zip(ways, starred(values, metric), strict=True)}


def table_of(title: str, rows: Sequence[Mapping[str, str]], left: Collection[str] = ()) -> Table:
    """Rows of texts by heading, without columns that have dashes only.

    The table becomes narrower by folding names and headings, never by cutting. The first column is
    aligned to the left, and those with the headings in ``left``.
    """
    table = Table(title=title, box=SIMPLE_HEAD, padding=0, min_width=len(title))
    headings = [key for key in (rows[0] if rows else ()) if {row[key] for row in rows} != {"-"}]
    for heading in headings:
        justify: JustifyMethod = "left" if heading in (headings[0], *left) else "right"
        table.add_column(heading, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, only(row, headings).values()))
    return table


def shown(value: float | str | None, spec: str = "") -> str:
    """A value, or a dash where there is none."""
    return "-" if value is None else f"{value:{spec}}"


def starred(values: Iterable[float | None], metric: Metric) -> list[str]:
    """Values in words; a star marks the best.

    >>> starred([0.5, None, 0.25], Metric())
    ['50.0%*', '- ', '25.0% ']
    """
    values = list(values)
    best = metric.best(value for value in values if value is not None)
    marks = {best: "*", None: " "}
    return [metric.in_words(value) + marks.get(value, " ") for value in values]
