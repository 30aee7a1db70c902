"""``summary.json``: what the rounds so far, and in the end the final evaluation, add up to."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cflower.algorithm.criteria import Outcome
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import ROOT, ParameterTree
from cflower.ordering import in_order, only, without
from cflower.recording.serialization import client_values, file_of, personal_files, scalars
from cflower.runs.records import (
    TRIAL_STATUS,
    ClientLine,
    Line,
    PersonalLine,
    RefusedLine,
    ServedBy,
    SplitLine,
    Summary,
)
from cflower.runs.ways import fairness
from cflower.strategy.reports import FinalReport, RoundReport

ADVICE = {
    Outcome.MOVING: "More rounds would help.",
    Outcome.UNSTEADY: "More rounds would help.",
    Outcome.TOO_FEW_HEARD: "More rounds, or more clients in each round, would help.",
    Outcome.NOT_APART: "More rounds or more examples would show weaker groups. `cflower try` shows "
    "whether clients do better alone.",
    Outcome.CONTENT: "`cflower try` shows whether clients do better alone.",
}
"""Advice for a run without a split, by the last decision on the root."""
START = "leaf"
"""The model from which members train in a personal step."""


@dataclass
class RunSoFar:
    """The figures that the lines of ``rounds.jsonl`` add up to."""

    members: dict[str, list[str]] = field(default_factory=dict)
    """The members of each cluster in its newest line."""
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Each client's newest metrics."""
    splits: list[SplitLine] = field(default_factory=list)
    refused: list[RefusedLine] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Members that the newest decision on their leaf did not consider, and why."""
    last: Line | None = None
    root: Line | None = None
    """The newest line about the root."""

    def add(self, line: Line) -> None:
        """Take up the next line."""
        self.members[line.cluster] = line.members
        for client, metrics in line.clients.items():
            self.clients.setdefault(client, {}).update(metrics)
        if line.decision == Outcome.SPLIT:
            self.splits.append(SplitLine.of(line, trial=None))
        elif line.decision in TRIAL_STATUS:
            newest = {split.cluster: split for split in self.splits}[line.cluster]
            newest.trial, newest.verdict = TRIAL_STATUS[Outcome(line.decision)], line.reason
        elif line.decision == Outcome.REFUSED:
            self.refused.append(RefusedLine.of(line))
        self.last = line
        if line.decision not in TRIAL_STATUS:
            if self.left_out:
                self.left_out = without(self.left_out, line.members)
            self.left_out |= line.left_out
        if line.cluster == ROOT:
            self.root = line

    def summary(self, report: RoundReport | FinalReport, **fields: Any) -> Summary:
        """The summary after a round or after the final evaluation; ``fields`` are the others."""
        state, failures, clients = report.state, report.failures, self.clients
        tree = state.tree
        result: dict[str, Any] = {}
        if isinstance(report, FinalReport):
            # If nobody evaluated at the end, the figures of earlier rounds are shown.
            result, clients = final_result(report), served_lines(report) or clients
        result["clients"] = client_lines(state, clients)
        return Summary(
            clusters={leaf.name: list(state.members_of(leaf)) for leaf in tree.leaves},
            not_placed=list(in_order(state.unplaced)),
            splits=self.splits,
            refused=self.refused,
            not_split=getattr(report, "advice", "") or why_not_split(tree, self.root),
            left_out=only(self.left_out, in_order(self.left_out)),
            moves=list(state.moves),
            common_rounds=tree.root.rounds,
            central=self.last.central if self.last else {},
            problems=only(failures.problems, in_order(failures.problems)),
            excluded=only(failures.excluded, in_order(failures.excluded)),
            **result,
            **fields,
        )


def why_not_split(tree: ParameterTree, root: Line | None) -> str | None:
    """Why there is one cluster, by the last line about it, and what may help."""
    if not tree.root.is_leaf or root is None or root.decision in (Outcome.NEVER, Outcome.FOUND):
        return None
    return f"No split: {root.reason}. {ADVICE.get(Outcome(root.decision), '')}".rstrip()


def client_lines(
    state: CFLState, known: Mapping[str, Mapping[str, Any]]
) -> dict[str, ClientLine | dict[str, Any]]:
    """The entries of ``clients`` in the summary; those without figures share one for each leaf."""
    tree, no_leaf = state.tree, dict.fromkeys(state.unplaced, "")
    leaf = {client: tree.leaf_of(client).name for client in tree.clients} | no_leaf
    blank = {name: ClientLine(cluster=name) for name in leaf.values()}
    return {
        client: {"cluster": name, **known[client]} if client in known else blank[name]
        for client, name in leaf.items()
    }


def final_result(report: FinalReport) -> dict[str, Any]:
    """The fields of the summary that come with the final evaluation, without the clients'.

    The true groups count if most clients report one: a single one cannot decide an index about all.
    """
    results = report.clients
    groups = {name: one.facts["group"] for name, one in results.items() if "group" in one.facts}
    placed = without(groups, report.state.unplaced)
    most = 2 * len(groups) > len(results)
    ways = {
        "own": report.served.values(),
        "leaf": [client.leaf for client in results.values()],
        "fl": [client.federated for client in results.values()],
    }
    name = report.metric.name
    even = {
        way: fairness((one.scalars.get(name) for one in measured), report.metric)
        for way, measured in ways.items()
    }
    return {
        "finished": True,
        "selection": report.selection,
        "decided_by": report.decided_by,
        "metrics": scalars(report.metrics),
        "pooled": report.pooled,
        "fairness": {way: figures for way, figures in even.items() if figures},
        "personal": {
            leaf: PersonalLine.of(
                step,
                kappa=step.kappa if step.accepted else None,  # for the leaf's model it is ∞
                start=START if step.accepted else None,
                length=step.trainings,
                clients=len(step.models),
            )
            for leaf, step in report.state.personal.items()
        },
        "groups": groups if most else None,
        "adjusted_rand_index": rand_index(placed, report.state.tree) if most else None,
    }


def served_lines(report: FinalReport) -> dict[str, dict[str, Any]]:
    """The clients' entries in the summary after the final evaluation."""
    lines, metric, files = {}, report.metric.name, personal_files(report.state)
    trainings, evaluations = report.failures.trainings, report.failures.evaluations
    for name, result in report.clients.items():
        line: dict[str, Any] = client_values(result.served(report.selection))
        for column, measured in result.columns.items():
            figures = client_values(measured) if measured else {}
            line |= {f"{column}_{k}": figures.get(k) for k in (metric, *client_values(result.leaf))}
        lines[name] = line | {
            "num_examples": result.num_examples,
            "held_out": result.leaf.num_examples,
            "trainings": trainings.get(name, 0),
            "evaluations": evaluations.get(name, 0),
            "best_cluster": result.best_cluster,
            "levels": {n: client_values(level).get(metric) for n, level in result.levels.items()},
            "served_by": served_by(report, name, files.get(name)),
        }
    return lines


def served_by(report: FinalReport, client: str, own_file: str | None) -> ServedBy:
    """The model that serves a client: its kind, cluster, the share of its own, and its file."""
    result, tree = report.clients[client], report.state.tree
    step = report.state.personal.get(result.cluster)
    if step and own_file and result.personal:
        share, leaf = step.shares[client], result.cluster
        return ServedBy(model="personal", cluster=leaf, share=share, start=START, file=own_file)
    best = result.best_cluster if report.selection == "best" else None
    cluster = tree.clusters[best or result.cluster]
    if report.selection == "ensemble" and result.ensemble:
        kind, file = "ensemble", None
    else:
        kind, file = "leaf" if cluster.is_leaf else "above", file_of(cluster)
    return ServedBy(model=kind, cluster=cluster.name, share=0.0, start=None, file=file)


def rand_index(groups: Mapping[str, int | str], tree: ParameterTree) -> float:
    """Adjusted Rand index of the clusters against the true groups; 1 is exact.

    As scikit-learn's ``adjusted_rand_score``, which loads for a second.
    """

    def pairs(*sides: Iterable[str]) -> int:
        """Ordered pairs of clients that are together on all of these sides."""
        return sum(count * (count - 1) for count in Counter(zip(*sides, strict=True)).values())

    true = [str(group) for group in groups.values()]
    leaves = [tree.leaf_of(name).name for name in groups]
    both, by_group, by_leaf = pairs(true, leaves), pairs(true), pairs(leaves)
    if both == by_group == by_leaf:
        return 1.0
    every, chance = len(groups) * (len(groups) - 1), by_group * by_leaf
    return 2 * (both * every - chance) / ((by_group + by_leaf) * every - 2 * chance)
