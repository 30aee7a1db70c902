"""The end of a run in the terminal: the cluster tree and the client × model table."""

from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from cflower.algorithm.tree import ROOT, in_order

MODELS = {
    "fl_accuracy": "FL model",
    "leaf_accuracy": "leaf",
    "best_accuracy": "best",
    "ensemble_accuracy": "ensemble",
}
"""Which models the table has a column of, by their key in ``summary.json``."""
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
    metrics = summary["metrics"]
    if "accuracy" in metrics and "fl_accuracy" in metrics:
        own, federated = metrics["accuracy"], metrics["fl_accuracy"]
        text += f" Weighted mean accuracy {own:.4f}"
        split_in = [split["round"] for split in summary["splits"]]
        if split_in:
            text += (
                f"; the FL model, as it was before the split in round {min(split_in)}: "
                f"{federated:.4f} ({own - federated:+.4f})"
            )
        text += "."
    if summary.get("adjusted_rand_index") is not None:
        text += (
            f" Adjusted Rand index against the true groups {summary['adjusted_rand_index']:.3f}."
        )
    return text


def cluster_tree(summary: Mapping[str, Any], tree: Mapping[str, Any]) -> Tree:
    """The clusters as a tree, each with its members and their mean accuracy."""
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
            summary["clients"][client]["accuracy"]
            for client in members
            if "accuracy" in summary["clients"].get(client, {})
        ]
        mean = f", mean accuracy {sum(scores) / len(scores):.4f}" if scores else ""
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
    """Every client under each column of `MODELS`; * marks what is not below any other."""
    groups = summary.get("groups") or {}
    # Nine columns have to fit into the 80 of a terminal.
    title = "client × model (accuracy on held-out examples, * = best)"
    table = Table(title=title, box=SIMPLE_HEAD, padding=0)
    table.add_column("client", no_wrap=True)
    headings = ("examples", "cluster", *MODELS.values(), "best is", *["true group"] * bool(groups))
    for heading in headings:
        table.add_column(heading, justify="right")
    for name in in_order(summary["clients"]):
        client = summary["clients"][name]
        # While a run goes on, there is only the accuracy of the last round.
        client = {"leaf_accuracy": client.get("accuracy"), **client}
        accuracies = [client.get(key) for key in MODELS]
        row = [name, shown(client.get("num_examples"), "g"), client["cluster"]]
        row += [marked(accuracy, accuracies) for accuracy in accuracies]
        row.append(client.get("best_cluster") or "-")
        table.add_row(
            *(Text(cell) for cell in row), *([str(groups.get(name, "-"))] if groups else [])
        )
    return table


def shown(value: float | None, spec: str) -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else f"{value:{spec}}"


def marked(value: float | None, others: Iterable[float | None]) -> str:
    """The accuracy, with a star if it is not below any of the others.

    >>> marked(0.5, [0.25, None, 0.5]), marked(0.5, [0.75])
    ('0.5000*', '0.5000 ')
    """
    best = value is not None and all(value >= other for other in others if other is not None)
    return shown(value, ".4f") + ("*" if best else " ")
