"""The end of a run in the terminal: the cluster tree and the client × model table."""

from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from cflower.algorithm.tree import ROOT
from cflower.federation.reports import Metric
from cflower.ordering import in_order
from cflower.runs.record import metric_of

COLUMNS = {"fl": "common", "leaf": "own", "best": "best", "ensemble": "ensemble"}
"""The models that a client may be served by: prefix in ``summary.json``, heading."""
MOST_NAMES = 12
"""Members named on one line of the tree; the table has them all."""


def as_text(content: Any, width: int = 100) -> str:
    """What rich would print, without colours."""
    buffer = StringIO()
    Console(file=buffer, width=width, no_color=True, force_terminal=False).print(content)
    return buffer.getvalue().rstrip()


def run_view(summary: Mapping[str, Any], tree: Mapping[str, Any]) -> Group:
    """Everything `cflower show` prints of a run.

    Parameters
    ----------
    summary, tree : mapping
        ``summary.json`` and ``tree.json``.
    """
    return Group(
        Text(headline(summary)),
        Text(),
        cluster_tree(summary, tree),
        Text(),
        model_table(summary),
    )


def headline(summary: Mapping[str, Any]) -> str:
    """What was found and what it brought, in one or two sentences.

    >>> headline({"finished": True, "rounds": 9, "clusters": {"0": ["a"]}, "metrics": {}})
    '1 cluster after 9 rounds.'
    """
    count, rounds = len(summary["clusters"]), summary["rounds"]
    so_far = "after" if summary["finished"] else "so far, after"
    text = f"{count} cluster{'s' * (count != 1)} {so_far} {rounds} rounds."
    metrics, metric = summary["metrics"], metric_of(summary)
    own, common = metrics.get(metric.name), metrics.get(f"fl_{metric.name}")
    if own is not None:
        text += f" Own model: mean {metric.name} {own:.4f}"
        split_in = [split["round"] for split in summary["splits"]]
        if split_in and common is not None:
            text += (
                f"; common model before the split (round {min(split_in)}): {common:.4f}; "
                "conventional FL for all rounds: not measured"
            )
        text += "."
    if summary.get("adjusted_rand_index") is not None:
        text += (
            f" Adjusted Rand index against the true groups {summary['adjusted_rand_index']:.3f}."
        )
    return text


def cluster_tree(summary: Mapping[str, Any], tree: Mapping[str, Any]) -> Tree:
    """The clusters as a tree, each with its members and their mean of the leading metric."""
    metric = metric_of(summary).name
    clusters = tree["clusters"]
    splits = {split["cluster"]: split for split in summary["splits"]}

    def label(name: str) -> str:
        members = clusters[name]["members"]
        text = f"cluster {name}: {len(members)} client{'s' * (len(members) != 1)}"
        if name in splits:
            split = splits[name]
            alpha = shown(split["alpha_cross"], ".2f")
            return f"{text}, split in round {split['round']} (alpha_cross {alpha})"
        if clusters[name]["children"]:
            return text
        scores = [
            summary["clients"][client][metric]
            for client in members
            if metric in summary["clients"].get(client, {})
        ]
        mean = f", mean {metric} {sum(scores) / len(scores):.4f}" if scores else ""
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


def model_table(summary: Mapping[str, Any]) -> Table:
    """Every client under its own model and the common one; * marks the better.

    ``best`` and ``ensemble`` are shown where the run's ``selection`` asked for them.
    """
    groups, metric = summary.get("groups") or {}, metric_of(summary)
    extra = [key for key in ("best", "ensemble") if summary.get("selection") == key]
    columns = ["fl", "leaf", *extra]
    title = f"client × model ({metric.name} on held-out examples, * = best)"
    table = Table(title=title, box=SIMPLE_HEAD, padding=0)
    table.add_column("client", no_wrap=True)
    headings = ["trained on", "cluster", *(COLUMNS[key] for key in columns)]
    headings += ["best is"] * ("best" in extra) + ["true group"] * bool(groups)
    for heading in headings:
        table.add_column(heading, justify="right")
    for name in in_order(summary["clients"]):
        client = summary["clients"][name]
        # While a run goes on, there is only the figure of the last round.
        client = {f"leaf_{metric.name}": client.get(metric.name), **client}
        values = [client.get(f"{key}_{metric.name}") for key in columns]
        row = [name, shown(client.get("num_examples"), "g"), client["cluster"]]
        row += [marked(value, values, metric) for value in values]
        row += [client.get("best_cluster") or "-"] * ("best" in extra)
        row += [str(groups.get(name, "-"))] * bool(groups)
        table.add_row(*(Text(cell) for cell in row))
    return table


def shown(value: float | None, spec: str) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else f"{value:{spec}}"


def marked(value: float | None, others: Iterable[float | None], metric: Metric) -> str:
    """A value, with a star if none of the others is better.

    >>> marked(0.5, [0.25, None, 0.5], Metric()), marked(0.5, [0.75], Metric())
    ('0.5000*', '0.5000 ')
    """
    best = metric.best(other for other in others if other is not None)
    return shown(value, ".4f") + ("*" if value is not None and value == best else " ")
