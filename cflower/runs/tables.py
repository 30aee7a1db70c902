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

from cflower.algorithm.tree import ROOT
from cflower.metric import Metric
from cflower.ordering import counted, in_order, line, listed, only
from cflower.pooled import POOLED, Pooled, Share
from cflower.runs.findings import finding
from cflower.runs.records import ClusterLine, Summary, bodies
from cflower.runs.ways import KINDS, LITERATURE, Ways

MANY = 25
"""Clients above which the table is by cluster."""
INTERVALS = "95% intervals, as if the examples were drawn at random"
SHOWN = {"auc": "AUC", "f1": "macro F1", "accuracy": "accuracy"}


class Printed(StringIO):
    """A text for standard output: where that takes no lines of boxes, rich draws them in ASCII."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(sys.stdout, "encoding", None) or "utf-8"


def as_text(content: Any, width: int = 0) -> str:
    """The output of rich without colours, as wide as the terminal if no ``width`` is given."""
    buffer, width = Printed(), width or get_terminal_size((100, 24)).columns
    Console(file=buffer, width=width, no_color=True, force_terminal=False).print(content)
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip().splitlines())


def run_view(
    summary: Summary, clusters: Mapping[str, ClusterLine], *, every: bool = False
) -> Group:
    """The output of `cflower show`; with ``every``, all clients are shown, however many."""
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
    branches, ways = {"": Tree("", hide_root=True)}, Ways(summary)
    splits = {split.cluster: split for split in summary.lasting}
    shared = bodies(clusters)
    for name in in_order(clusters):
        cluster = clusters[name]
        text = f"cluster {name}: {counted(len(cluster.members), 'client')}"
        if split := splits.get(name):
            text += f", split in round {split.round}{', confirmed' if split.trial else ''}"
        elif not cluster.children:
            text += members_in_words(cluster.members, ways, summary.pooled.get(name))
        if len(leaves := shared.get(name, [])) > 1:
            text += f"; {listed(leaves)} share all layers but the output layer"
        branches[name] = branches[name.rpartition(".")[0]].add(Text(text))
    return branches[""]


def members_in_words(members: Sequence[str], ways: Ways, together: Pooled | None) -> str:
    """The members of a leaf, the first of them by name, and the mean of its model."""
    if not members:
        return ", closed because its last client moved away"
    metric = ways.metric
    if figure := getattr(together, metric.name, None) if metric.name in POOLED else None:
        return f", {metric.name} {metric.in_words(figure.value)}: {listed(members)}"
    known = len(only(ways["leaf"].values, members))
    words = f", mean {metric.name} {metric.in_words(ways.mean('leaf', members))}" if known else ""
    if 0 < known < len(members):
        words += f" of {known} of them"
    if any(one.served.model != "leaf" for one in only(ways.clients, members).values()):
        words += f" ({metric.in_words(ways.mean('own', members))} with the models that serve them)"
    return f"{words}: {listed(members)}"


def model_tables(summary: Summary, *, every: bool = False) -> Group:
    """Every client under each model; of many clients a row for each cluster."""
    ways = Ways(summary)
    if every or len(ways.clients) <= MANY:
        return Group(client_table(ways))
    hint = Text(f"`cflower show --all` shows each of the {len(ways.clients)} clients.")
    return Group(cluster_table(ways), hint)


def client_table(ways: Ways) -> Table:
    """One row for each client; * marks the best of its models."""
    rows = [
        {
            "client": row["name"],
            "held\nout": shown(row["examples"], "g"),
            "cluster": shown(row["cluster"]),
            **scores(ways, [row[key] for key in columns(ways)]),
            "model\nof": shown(row["level"]),
            "own\nshare": shown(row["share"], ".0%"),
            "true\ngroup": shown(row["group"]),
        }
        for row in map(ways.row, ways.clients)
    ]
    return table_of(f"client × model ({ways.metric.name}, * = best)", rows)


def cluster_table(ways: Ways) -> Table:
    """One row for each cluster: means over its clients, and its worst client."""
    rows, metric = [], ways.metric
    for cluster, members in only(ways.summary.clusters, in_order(ways.summary.clusters)).items():
        worst = metric.worst(only(ways["own"].values, members).values())
        held_out = sum(one.held_out or 0 for one in only(ways.clients, members).values())
        row = {"cluster": cluster, "clients": str(len(members)), "held\nout": f"{held_out:g}"}
        row |= scores(ways, [ways.mean(key, members) for key in columns(ways)])
        rows.append(row | {"worst\nclient": metric.in_words(worst)})
    return table_of(f"cluster × model (mean {metric.name}, * = best)", rows)


def method_rows(ways: Ways) -> list[dict[str, str]]:
    """The table of the methods, as texts by heading."""
    metric, methods = ways.metric, ways.methods
    means = starred([method.mean for method in methods], metric)
    rows = []
    for method, best in zip(methods, means, strict=True):
        row = {"method": method.words, f"mean\n{metric.name}": best}
        row["worst\nclient"] = metric.in_words(metric.worst(method.values.values()))
        pair = ways.against("isolated", method.key) if method.key != "isolated" else None
        row["worse than\nalone"] = f"{pair.worse} of {pair.clients}" if pair else "-"
        row["trainings\na client"] = shown(method.trainings, ".3g")
        size = None if method.num_bytes is None else method.num_bytes / 1e6
        rows.append(row | {"MB\nsent": shown(size, ".3g")})
    return rows


def method_table(ways: Ways) -> Table:
    title = f"{ways.metric.in_full} of the clients by method (* = best)"
    return table_of(title, method_rows(ways))


def columns(ways: Ways) -> list[str]:
    """The ways that have room in a terminal; the lines above the table have all of them."""
    return [key for key in ways.shown if key not in LITERATURE]


def scores(ways: Ways, values: list[float | None]) -> dict[str, str]:
    words = starred(values, ways.metric)
    return {KINDS[key].heading: text for key, text in zip(columns(ways), words, strict=True)}


def table_of(title: str, rows: Sequence[Mapping[str, str]], left: Collection[str] = ()) -> Table:
    """Rows of texts by heading, without columns of dashes only; folded if narrow, never cut."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=0, min_width=len(title))
    headings = [key for key in (rows[0] if rows else ()) if {row[key] for row in rows} != {"-"}]
    for heading in headings:
        justify: JustifyMethod = "left" if heading in (headings[0], *left) else "right"
        table.add_column(heading, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, only(row, headings).values()))
    return table


def shown(value: float | str | None, spec: str = "") -> str:
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


def is_shown(summary: Summary) -> bool:
    """Whether a page shows the figures of all examples together unasked.

    It does if there are two classes, or if one of these figures leads.
    """
    line = summary.pooled.get("own")
    return line is not None and (len(line.classes) == 2 or summary.metric.name in POOLED)


def sentences(summary: Summary) -> list[str]:
    """The figures of the models that serve the clients, and of the common one if it is another."""
    own, common = summary.pooled.get("own"), summary.pooled.get("fl")
    lines = [in_one_sentence(own)] if own else []
    if common and summary.lasting:
        lines.append(f"The common model: {in_one_sentence(common)}")
    return lines


def in_one_sentence(pooled: Pooled) -> str:
    """AUC, macro F1 and accuracy with their intervals."""
    figures = {name: getattr(pooled, key) for key, name in SHOWN.items()}
    words = [f"{name} {share_in_words(figure)}" for name, figure in figures.items() if figure]
    return f"All {pooled.examples} held-out examples of {pooled.clients} clients together: " + (
        f"{', '.join(words)} ({INTERVALS})."
    )


def by_class(summary: Summary, pooled: Pooled) -> list[dict[str, str]]:
    """A row for each class, by heading."""
    names, count = summary.class_names, len(pooled.classes)
    if len(names) != count:
        names = [*map(str, range(count))]
    return [
        {
            "class": line(name),
            "held out": str(one.examples),
            "clients with it": f"{one.clients} of {pooled.clients}",
            "sensitivity": share_in_words(one.sensitivity),
            "specificity": share_in_words(one.specificity),
            "precision": share_in_words(one.precision),
            "F1": "-" if one.f1 is None else f"{one.f1:.1%}",
        }
        for name, one in zip(names, pooled.classes, strict=True)
    ]


def share_in_words(figure: Share | None) -> str:
    """A share and its interval.

    >>> share_in_words(Share(0.5, [0.25, 0.75]))
    '50.0% (25.0-75.0)'
    """
    if figure is None:
        return "-"
    low, high = figure.interval
    return f"{figure.value:.1%} ({100 * low:.1f}-{100 * high:.1f})"
