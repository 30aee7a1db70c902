"""The content of a run folder as plain values: a round's lines, a split, the tree, a client."""

from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from cflower.algorithm.criteria import Decision, Outcome
from cflower.algorithm.state import CFLState, Personal
from cflower.algorithm.tree import Cluster, ParameterTree, Status
from cflower.algorithm.weights import Weights
from cflower.messages.claims import PREVIEW
from cflower.messages.metrics import ClientMetrics
from cflower.ordering import in_order, only, without
from cflower.runs.baselines import fairness
from cflower.runs.records import (
    TRIAL_STATUS,
    ClientLine,
    ClusterLine,
    Line,
    MoveLine,
    PersonalLine,
    ServedBy,
    SplitLine,
    Tree,
    TrialLine,
)
from cflower.strategy.reports import FinalReport, RoundReport

Figures = dict[str, float]
ADVICE = {
    Outcome.MOVING: "More rounds would help.",
    Outcome.UNSTEADY: "More rounds would help.",
    Outcome.TOO_FEW_HEARD: "More rounds, or more clients in each round, would help.",
    Outcome.NOT_APART: "More rounds or more examples would show weaker groups. `cflower try` shows "
    "whether clients do better alone.",
    Outcome.CONTENT: "`cflower try` shows whether clients do better alone.",
}
"""What may help a run without a split, by the last decision on the root."""
START = "leaf"
"""The model from which members train in a personal step."""
MODELS = ("models", "general", "personal")
"""The folders of models: of clusters, of the leaves' means above judged splits, and of clients."""
RESERVED = frozenset(ClientLine.model_fields)
FIGURES = ("mean_norm", "max_norm", "alpha_cross", "seconds")


def round_line(report: RoundReport, decision: Decision) -> Line:
    """One cluster's line of ``rounds.jsonl``.

    The metrics, problems and moves of a client are in the line of its leaf, not in the one about a
    split on trial.
    """
    cluster, tree = decision.cluster, report.trained
    trained = [client for client, on in report.trained_on.items() if on == cluster]
    is_leaf = decision.outcome not in TRIAL_STATUS
    return Line.of(
        decision,
        round=report.server_round,
        members=tree.clusters[cluster].members,
        heard=tree.among(trained, cluster),
        decision=decision.outcome.value,
        metrics=scalars(report.metrics(cluster)),
        central=scalars(report.central),
        seconds=round(report.seconds, 3),
        **(member_fields(report, cluster) if is_leaf else {"clients": {}, "problems": {}}),
    )


def member_fields(report: RoundReport, cluster: str) -> dict[str, Any]:
    """The fields of a leaf's line that are about single members."""
    outstanding = {sent.ask.client: sent.ask.server_round for sent in report.outstanding}
    present = set().union(report.measured, report.problems, report.late, outstanding)
    own = report.trained.among(present, cluster)
    now = [move for move in report.state.moves if move.server_round == report.server_round]
    return {
        "moves": [MoveLine.of(move) for move in now if move.origin == cluster],
        "clients": {name: numbers(one) for name, one in only(report.measured, own).items()},
        "problems": only(report.problems, own),
        "late": only(report.late, own),
        "outstanding": only(outstanding, own),
    }


def why_not_split(tree: ParameterTree, root: Line | None) -> str | None:
    """Why there is one cluster, and what may help; None if there are more, or should be one.

    ``root`` is the last line about the root.
    """
    if not tree.root.is_leaf or root is None or root.decision == Outcome.NEVER:
        return None
    return f"No split: {root.reason}. {ADVICE.get(Outcome(root.decision), '')}".rstrip()


def measures_in(line: Line) -> Figures:
    """The numbers of one line of ``rounds.jsonl``, each under its path in the line."""
    name = line.cluster
    groups: dict[str, Mapping[str, Any]] = {
        name: {key: getattr(line, key) for key in FIGURES},
        f"{name}/figures": line.figures,
        f"{name}/metrics": line.metrics,
        "central": line.central,
        **{f"clients/{client}": metrics for client, metrics in line.clients.items()},
    }
    return {
        f"{group}/{key}": float(value)
        for group, values in groups.items()
        for key, value in values.items()
        if value is not None
    }


def data_line(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A client's entry in ``clients.json``, from the facts that it reported in the roll call."""
    line = {}
    for key, value in only(facts, PREVIEW).items():
        is_bytes = isinstance(value, bytes)
        line[key.replace("-", "_")] = b64encode(value).decode() if is_bytes else list(value)
    return line


def note_split(splits: list[SplitLine], line: Line) -> None:
    """Add a line's split, or the result of its trial, to ``splits`` of the summary."""
    if line.decision == Outcome.SPLIT:
        splits.append(SplitLine.of(line, trial=None))
    elif line.decision in TRIAL_STATUS:
        newest = {split.cluster: split for split in splits}[line.cluster]
        newest.trial, newest.verdict = TRIAL_STATUS[Outcome(line.decision)], line.reason


def split_lines(splits: Iterable[SplitLine], tree: ParameterTree) -> list[SplitLine]:
    """The splits with a trial that is open also before its first vote."""
    on_trial = {name for name, cluster in tree.clusters.items() if cluster.on_trial}
    return [
        split.model_copy(update={"trial": Status.OPEN.value})
        if split.trial is None and split.cluster in on_trial
        else split
        for split in splits
    ]


def tree_record(state: CFLState) -> Tree:
    """``tree.json``: every cluster of the parameter tree, without its arrays."""
    clusters = state.tree.clusters
    lines = {name: cluster_line(clusters[name]) for name in in_order(clusters)}
    return Tree(clusters=lines, unassigned=dict(state.tree.unassigned))


def cluster_line(cluster: Cluster) -> ClusterLine:
    return ClusterLine.of(
        cluster,
        edge_clients=list(cluster.edge),
        general=cluster.trial is not None,
        trial=cluster.trial and TrialLine.of(cluster.trial, until=cluster.trial.due),
        undone=[TrialLine.of(trial, until=trial.due) for trial in cluster.undone],
    )


def served_lines(report: FinalReport) -> dict[str, dict[str, Any]]:
    """The clients' entries in the summary after the final evaluation."""
    lines, metric, files = {}, report.metric.name, personal_files(report.state)
    for name, result in report.clients.items():
        line: dict[str, Any] = numbers(result.served(report.selection))
        for column, measured in result.columns.items():
            figures = numbers(measured) if measured else {}
            line |= {f"{column}_{k}": figures.get(k) for k in (metric, *numbers(result.leaf))}
        lines[name] = line | {
            "num_examples": result.num_examples,
            "held_out": result.leaf.num_examples,
            "trainings": report.failures.trainings.get(name, 0),
            "evaluations": report.failures.evaluations.get(name, 0),
            "best_cluster": result.best_cluster,
            "levels": {n: numbers(level).get(metric) for n, level in result.levels.items()},
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


def file_of(cluster: Cluster) -> str:
    """The file of the model that a cluster has at the end of a run."""
    return f"{'models' if cluster.trial is None else 'general'}/{cluster.name}.safetensors"


def model_files(state: CFLState) -> dict[str, Weights]:
    """Every cluster's models of the end of a run by their files in the run folder."""
    files = {}
    for name, cluster in state.tree.clusters.items():
        files[f"models/{name}.safetensors"] = cluster.model
        files[file_of(cluster)] = state.tree.model_of(name)
    return files


def personal_files(state: CFLState) -> dict[str, str]:
    """The file of each client with a model of its own, numbered: a name may be no file's name."""
    names = in_order(state.personal_models)
    return {client: f"personal/{i}.safetensors.zlib" for i, client in enumerate(names)}


def personal_line(step: Personal) -> PersonalLine:
    """The personal step of a leaf in ``summary.json``; κ is null for the leaf's model (∞)."""
    return PersonalLine.of(
        step,
        kappa=step.kappa if step.accepted else None,
        start=START if step.accepted else None,
        length=step.trainings,
        clients=len(step.models),
    )


def final_result(report: FinalReport) -> dict[str, Any]:
    """The fields of the summary that come with the final evaluation, without the clients'.

    The true groups count if most clients report one: a single client cannot decide an index about
    all.
    """
    results = report.clients
    groups = {name: one.facts["group"] for name, one in results.items() if "group" in one.facts}
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
        "fairness": {way: figures for way, figures in even.items() if figures},
        "personal": {leaf: personal_line(step) for leaf, step in report.state.personal.items()},
        "groups": groups if most else None,
        "adjusted_rand_index": rand_index(groups, report.state.tree) if most else None,
    }


def numbers(measured: ClientMetrics) -> dict[str, float]:
    """The metrics that are one number each, without those named like the folder's own fields.

    >>> numbers(ClientMetrics({"loss": 0.5, "recall": [0.1, 0.2], "cluster": 7}, 1))
    {'loss': 0.5}
    """
    return without(measured.scalars, RESERVED)


def scalars(metrics: Mapping[str, Any]) -> Figures:
    """The metrics that are one finite number each: JSON has no others."""
    numbers = ClientMetrics(dict(metrics), 0).scalars
    return {key: value for key, value in numbers.items() if isfinite(value)}


def rand_index(groups: Mapping[str, int | str], tree: ParameterTree) -> float:
    """Adjusted Rand index of the clusters against the true groups; 1 is exact.

    As scikit-learn's ``adjusted_rand_score``, which loads for a second: pairs are counted, and
    whole numbers are exact.
    """

    def pairs(*sides: Iterable[str]) -> int:
        """Ordered pairs of clients that are together on all of these sides."""
        return sum(count * (count - 1) for count in Counter(zip(*sides, strict=True)).values())

    true = [str(group) for group in groups.values()]
    found = [tree.leaf_of(name).name for name in groups]
    both, by_group, by_leaf = pairs(true, found), pairs(true), pairs(found)
    if both == by_group == by_leaf:
        return 1.0
    neither = len(groups) * (len(groups) - 1) - by_group - by_leaf + both
    split, joined = by_group - both, by_leaf - both
    apart, unlike = split + neither, joined + neither
    return 2 * (both * neither - split * joined) / (by_group * apart + by_leaf * unlike)
