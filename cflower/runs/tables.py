"""The end of a run in the terminal: the cluster tree and the client × model table."""

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from cflower.algorithm.tree import ROOT
from cflower.ordering import in_order
from cflower.runs.record import (
    Row,
    all_clients,
    baseline_lines,
    counted,
    finding,
    lasting,
    metric_of,
    total,
    weighted,
)
from cflower.strategy.reports import Metric

MOST_NAMES = 12
"""Members named on one line of the tree; the table has them all."""
MANY, FEW = 25, 10
"""More clients than the first are shown by cluster, and so many of them one by one."""


def as_text(content: Any, width: int = 100) -> str:
    """What rich would print, without colours."""
    buffer = StringIO()
    Console(file=buffer, width=width, no_color=True, force_terminal=False).print(content)
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip().splitlines())


def run_view(summary: Mapping[str, Any], tree: Mapping[str, Any], *, every: bool = False) -> Group:
    """Everything `cflower show` prints of a run.

    Parameters
    ----------
    summary, tree : mapping
        ``summary.json`` and ``tree.json``.
    every : bool
        Whether all clients are shown where there are many.
    """
    lines = baseline_lines(summary)
    return Group(
        Text(finding(summary)),
        Text(),
        *(Text(line) for line in lines),
        *(Text(),) * bool(lines),
        cluster_tree(summary, tree),
        Text(),
        model_tables(summary, every=every),
    )


def cluster_tree(summary: Mapping[str, Any], tree: Mapping[str, Any]) -> Tree:
    """The clusters as a tree, each with its members and their mean of the leading metric."""
    metric = metric_of(summary)
    clusters = tree["clusters"]
    splits = {split["cluster"]: split for split in lasting(summary["splits"])}

    def label(name: str) -> str:
        members = clusters[name]["members"]
        text = f"cluster {name}: {counted(len(members), 'client')}"
        if name in splits:
            split = splits[name]
            alpha = shown(split["alpha_cross"], ".2f")
            said = {"open": ", still on trial", "confirmed": ", confirmed"}
            trial = said.get(str(split.get("trial")), "")
            return f"{text}, split in round {split['round']}{trial} (alpha_cross {alpha})"
        if clusters[name]["children"]:
            return text
        if not members:
            return f"cluster {name}: closed, its last client moved away"
        own = weighted(metric.name, [(n, summary["clients"].get(n, {})) for n in members])
        mean = "" if own is None else f", mean {metric.name} {metric.in_words(own)}"
        return f"{text}{mean}: {shortened(members)}"

    def grow(branch: Tree, name: str) -> Tree:
        for child in clusters[name]["children"]:
            grow(branch.add(Text(label(child))), child)
        return branch

    return grow(Tree(Text(label(ROOT))), ROOT)


def shortened(names: list[str]) -> str:
    """The first names of a long list.

    >>> shortened(["a", "b"])
    'a, b'
    """
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return ", ".join(names[:MOST_NAMES]) + f" and {len(names) - MOST_NAMES} more"


def model_tables(summary: Mapping[str, Any], *, every: bool = False) -> Group:
    """Every client under each model that was measured; many clients by cluster, then the worst."""
    metric, clients = metric_of(summary), all_clients(summary)
    rows = [(name, clients[name]) for name in in_order(clients)]
    if every or len(rows) <= MANY:
        title = f"client × model ({metric.name}, * = best)"
        return Group(client_table(title, rows, summary))
    clusters: dict[str, list[Row]] = {}
    for name, client in rows:
        clusters.setdefault(client["cluster"], []).append((name, client))
    ranked = sorted(
        (row for row in rows if row[1].get(metric.name) is not None),
        key=lambda row: row[1][metric.name] * (1 if metric.higher_is_better else -1),
    )
    return Group(
        cluster_table(clusters, summary),
        Text(),
        client_table(f"the {FEW} clients that are served worst", ranked[:FEW], summary),
        Text(f"All {len(rows)} clients: cflower show {summary['run_id']} --all"),
    )


def columns_of(summary: Mapping[str, Any]) -> dict[str, str]:
    """The models that were measured: prefix in ``summary.json``, and heading.

    ``best`` and ``ensemble`` only where the run's ``selection`` asked for them.
    """
    measured = summary.get("baselines") or {}
    columns = {"fl": "common", "leaf": "own"}
    columns |= {key: key for key in ("best", "ensemble") if summary.get("selection") == key}
    names = {"federated": "FL, all\nrounds", "isolated": "alone"}
    return columns | {key: heading for key, heading in names.items() if key in measured}


def client_table(title: str, rows: Iterable[Row], summary: Mapping[str, Any]) -> Table:
    """One row a client; * marks the best of its models."""
    metric, columns = metric_of(summary), columns_of(summary)
    groups, best = summary.get("groups") or {}, "best" in columns
    extra = ["best is"] * best + ["true\ngroup"] * bool(groups)
    table = table_of(title, ["client", "held\nout", "cluster", *columns.values(), *extra])
    for name, client in rows:
        values = [client.get(f"{key}_{metric.name}") for key in columns]
        row = [name, shown(client.get("held_out"), "g"), client["cluster"]]
        row += [marked(value, values, metric) for value in values]
        row += [client.get("best_cluster") or "-"] * best
        row += [str(groups.get(name, "-"))] * bool(groups)
        table.add_row(*(Text(cell) for cell in row))
    return table


def cluster_table(clusters: Mapping[str, Sequence[Row]], summary: Mapping[str, Any]) -> Table:
    """One row a cluster: means over its clients, and the one that is served worst."""
    metric, columns = metric_of(summary), columns_of(summary)
    title = f"cluster × model (mean {metric.name}, * = best)"
    table = table_of(title, ["cluster", "clients", "held\nout", *columns.values(), "worst\nclient"])
    for name in in_order(clusters):
        rows = clusters[name]
        values = [weighted(f"{key}_{metric.name}", rows) for key in columns]
        own = [c[metric.name] for _, c in rows if c.get(metric.name) is not None]
        cells = [name, str(len(rows)), shown(total(rows), "g")]
        cells += [marked(value, values, metric) for value in values]
        table.add_row(*(Text(cell) for cell in [*cells, metric.in_words(metric.worst(own))]))
    return table


def table_of(title: str, headings: Sequence[str]) -> Table:
    """An empty table that becomes narrower by folding names and headings, never by cutting."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=0)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", overflow="fold")
    return table


def shown(value: float | None, spec: str) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else f"{value:{spec}}"


def marked(value: float | None, others: Iterable[float | None], metric: Metric) -> str:
    """A value, with a star if none of the others is better.

    >>> marked(0.5, [0.25, None, 0.5], Metric()), marked(0.5, [0.75], Metric())
    ('50.0%*', '50.0% ')
    """
    best = metric.best(other for other in others if other is not None)
    return metric.in_words(value) + ("*" if value is not None and value == best else " ")
