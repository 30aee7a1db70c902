"""A run in the terminal: the cluster tree and the client × model table."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from io import StringIO
from shutil import get_terminal_size
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from cflower.algorithm.tree import Status
from cflower.messages.metrics import Metric
from cflower.ordering import counted, in_order, listed, only
from cflower.runs.findings import all_clients, finding, lasting, metric_of, ways_of, weighted

MOST_NAMES = 12
"""Members named on one line of the tree; the table has them all."""
MANY = 25
"""Clients above which the table is by cluster."""
TRIALS = {Status.OPEN: ", on trial until round {until}", Status.CONFIRMED: ", confirmed", None: ""}
HEADINGS = {
    **{"fl": "common\nmodel", "leaf": "cluster\nmodel", "own": "this\nrun"},
    **{"federated": "FL, all\nrounds", "isolated": "alone"},
}
Entries = Mapping[str, Mapping[str, Any]]
"""Clients of a run by name, with the fields of `all_clients`, or clusters."""


def as_text(content: Any, width: int = 0) -> str:
    """The output of rich without colours, as wide as the terminal if no ``width`` is given."""
    buffer, width = StringIO(), width or get_terminal_size((100, 24)).columns
    Console(file=buffer, width=width, no_color=True, force_terminal=False).print(content)
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip().splitlines())


def run_view(summary: Mapping[str, Any], clusters: Entries, *, every: bool = False) -> Group:
    """The output of `cflower show` for ``summary.json`` and the clusters of ``tree.json``.

    With ``every``, all clients are shown, however many.
    """
    tree, tables = cluster_tree(summary, clusters), model_tables(summary, every=every)
    return Group(Text(finding(summary)), Text(), tree, Text(), tables)


def cluster_tree(summary: Mapping[str, Any], clusters: Entries) -> Tree:
    """The clusters as a tree, each with its members and their mean of the leading metric."""
    branches = {"": Tree("", hide_root=True)}
    splits = {split["cluster"]: split for split in lasting(summary["splits"])}
    for name in in_order(clusters):
        cluster = clusters[name]
        text = f"cluster {name}: {counted(len(cluster['members']), 'client')}"
        if split := splits.get(name):
            trial = cluster.get("trial") or {}
            judged = TRIALS[split["trial"]].format(until=trial.get("until", "a later round"))
            text += f", split in round {split['round']}{judged}"
        elif not cluster["children"]:
            text += members_in_words(summary, cluster["members"])
        branches[name] = branches[name.rpartition(".")[0]].add(Text(text))
    return branches[""]


def members_in_words(summary: Mapping[str, Any], members: Sequence[str]) -> str:
    """The members of a leaf, at most `MOST_NAMES` of them by name, and the mean of its model.

    Also that of the models that serve them, where these are others.
    """
    if not members:
        return ", closed because its last client moved away"
    metric, clients = metric_of(summary), only(all_clients(summary), members)
    own, served = (weighted(f"{way}_{metric.name}", clients.values()) for way in ("leaf", "own"))
    words = f", mean {metric.name} {metric.in_words(own)}"
    known = sum(one.get(metric.name) is not None for one in clients.values())
    if 0 < known < len(members):
        words += f" of {known} of them"
    if any(one.get("served_by", {}).get("model", "leaf") != "leaf" for one in clients.values()):
        words += f" ({metric.in_words(served)} with the models that serve them)"
    return f"{words}: {listed(members, MOST_NAMES)}"


def model_tables(summary: Mapping[str, Any], *, every: bool = False) -> Group:
    """Every client under each model; of many clients a row for each cluster."""
    clients = all_clients(summary)
    if every or len(clients) <= MANY:
        return Group(client_table(clients, summary))
    hint = Text(f"Add --all to see each of the {len(clients)} clients.")
    return Group(cluster_table(clients, summary), hint)


def client_table(clients: Entries, summary: Mapping[str, Any]) -> Table:
    """One row for each client; * marks the best of its models."""
    rows = []
    for name, client in clients.items():
        row = {"client": name, "held\nout": shown(client["held_out"], "g")}
        row |= {"cluster": client["cluster"], **scores(summary, [client])}
        if summary["selection"] == "best":
            row["model\nof"] = shown(client["best_cluster"])
        row["own\nshare"] = shown(client["share"], ".0%")
        row["true\ngroup"] = shown(client["group"])
        rows.append(row)
    return table_of(f"client × model ({summary['metric']['name']}, * = best)", rows)


def cluster_table(clients: Entries, summary: Mapping[str, Any]) -> Table:
    """One row for each cluster: means over its clients, and its worst client."""
    metric, rows = metric_of(summary), []
    for cluster in in_order(summary["clusters"]):
        members = list(only(clients, summary["clusters"][cluster]).values())
        worst = metric.worst(client[metric.name] for client in members if metric.name in client)
        held_out = sum(client["held_out"] or 0 for client in members)
        row = {"cluster": cluster, "clients": str(len(members)), "held\nout": f"{held_out:g}"}
        rows.append(row | scores(summary, members) | {"worst\nclient": metric.in_words(worst)})
    return table_of(f"cluster × model (mean {metric.name}, * = best)", rows)


def scores(summary: Mapping[str, Any], clients: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The mean of some clients under each model, by heading."""
    metric, ways = metric_of(summary), ways_of(summary)
    means = [weighted(f"{way}_{metric.name}", clients) for way in ways]
    return dict(zip(map(HEADINGS.__getitem__, ways), starred(means, metric), strict=True))


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
