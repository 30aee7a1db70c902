"""The summary of a run in words, and the clients' figures by model."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from cflower.algorithm.robust_mean import limited
from cflower.algorithm.tree import Status
from cflower.errors import RunFolderError
from cflower.messages.metrics import Metric
from cflower.ordering import counted, in_order
from cflower.runs.baselines import BASELINES, Baseline, against, fairness_in_words
from cflower.runs.format import COLUMNS, OWN_FIELDS

SAME_EXAMPLES = (
    "The reported examples also decided about the clusters: the ClientApp does not keep them apart."
)


def lasting(splits: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The splits of a summary that were not taken back."""
    return [split for split in splits if split["trial"] != Status.UNDONE]


def by_metric(summary: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The summary with another leading metric, without what was only kept for the run's own.

    Raises a `RunFolderError` that names the metrics if no client sent this one.
    """
    if name in ("", summary["metric"]["name"]):
        return summary
    clients = summary["clients"]
    numbers = {k for one in clients.values() for k in one if isinstance(one[k], int | float)}
    columns = {f"{column}_{key}" for column in COLUMNS for key in numbers}
    sent = sorted(numbers - columns - OWN_FIELDS)
    if name not in sent:
        raise RunFolderError(
            f"Got --metric {name}, but the clients sent {', '.join(sent) or 'none'}: give one of "
            "these."
        )
    without_levels = {client: {**line, "levels": {}} for client, line in clients.items()}
    metric = Metric.of(name)._asdict()
    return {**summary, "metric": metric, "clients": without_levels, "baselines": None}


def metric_of(summary: Mapping[str, Any]) -> Metric:
    return Metric(**summary["metric"])


def baselines_of(summary: Mapping[str, Any]) -> Mapping[Baseline, Mapping[str, Any]]:
    """The baselines that were measured."""
    return {name: line for name, line in (summary["baselines"] or {}).items() if line}


def headline(summary: Mapping[str, Any], parts: str = "cluster", link: str = "among") -> str:
    """The result in one sentence.

    >>> summary = {"rounds": 1, "clusters": {"0": ["a", "b"]}, "finished": False}
    >>> headline(summary)
    '1 cluster among 2 clients so far, after 1 round.'
    """
    members = sum(map(len, summary["clusters"].values()))
    so_far = "" if summary["finished"] else "so far, "
    return (
        f"{counted(len(summary['clusters']), parts)} {link} {counted(members, 'client')} "
        f"{so_far}after {counted(summary['rounds'], 'round')}."
    )


def finding(summary: Mapping[str, Any]) -> str:
    """The result, and how well each model serves the clients, in a few sentences.

    >>> from cflower.runs.format import NO_SUMMARY
    >>> summary = {"rounds": 1, "clusters": {"0": ["a", "b"]}}
    >>> ended = {**NO_SUMMARY, **summary, "finished": True, "metrics": {"accuracy": 0.5}}
    >>> finding({**ended, "not_split": "No split: 2 members, 3 needed for a split."})
    '1 cluster among 2 clients after 1 round. Own model: mean accuracy 50.0%. No split: 2 members, \
3 needed for a split.'
    """
    metric, common, text = metric_of(summary), common_score(summary), headline(summary)
    measured, planned = baselines_of(summary), summary["baselines"] or {}
    if metric.name in summary["metrics"]:
        own = metric.in_words(summary["metrics"][metric.name])
        text += f" Own model: mean {metric.name} {own}{even(summary)}"
        if common is not None:
            federated = "measured next" if "federated" in planned else "not measured"
            if "federated" in measured:
                federated = metric.in_words(measured["federated"][metric.name])
            text += f"; {common_in_words(summary)}: {metric.in_words(common)}"
            text += f"; {BASELINES['federated']}: {federated}"
        text += "."
    if central := summary.get("central"):
        values = (f"{name} {Metric(name).in_words(value)}" for name, value in central.items())
        text += f" Central evaluation (evaluate_fn): {', '.join(values)}."
    text = " ".join([text, *remarks(summary)])
    if (index := summary["adjusted_rand_index"]) is not None:
        text += f" Adjusted Rand index against the true groups {index:.3f}."
    return text


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on what a reader of the figures has to know."""
    sentences = [summary["not_split"]] if summary["not_split"] else []
    if summary.get("decided_by") == "reported":
        sentences.append(SAME_EXAMPLES)
    steps = summary["personal"].values()
    if own := sum(step["clients"] for step in steps):
        leaves = counted(sum(step["accepted"] for step in steps), "cluster")
        sentences.append(
            f"Personal step: {counted(own, 'client')} of {leaves} have a model of their own, the "
            "cluster's moved towards one that they trained by themselves."
        )
    return sentences


def even(summary: Mapping[str, Any]) -> str:
    """The fairness of the own models in brackets; empty before the end of a run."""
    words = fairness_in_words(summary.get("fairness", {}).get("own", {}), metric_of(summary))
    return f" ({words})" if words else ""


def common_score(summary: Mapping[str, Any]) -> float | None:
    """The mean of the leading metric under the common model; None where it is the own model."""
    score: float | None = summary["metrics"].get(f"fl_{summary['metric']['name']}")
    return score if lasting(summary["splits"]) else None


def common_in_words(summary: Mapping[str, Any]) -> str:
    """Name the common model, which learned in some of the rounds only.

    >>> common_in_words({"common_rounds": 8, "rounds": 30})
    'common model (8 of 30 rounds)'
    """
    return f"common model ({summary['common_rounds']} of {counted(summary['rounds'], 'round')})"


def baseline_lines(summary: Mapping[str, Any]) -> list[str]:
    """A line for each baseline."""
    metric, lines = metric_of(summary), []
    for name, baseline in baselines_of(summary).items():
        line = f"{BASELINES[name]}: {metric.in_words(baseline[metric.name])}"
        if words := fairness_in_words(baseline, metric):
            line += f" ({words})"
        if compared := against(summary, baseline["clients"], metric):
            line += f". Own model: {compared.sentence}"
        lines.append(line)
    return lines


def all_clients(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The clients in natural order, with their groups and their metric in each of `ways_of`.

    As far as the run has come: ``held_out`` and the values under other models may be None.
    """
    metric, groups, clients = summary["metric"]["name"], summary["groups"] or {}, {}
    for name in in_order(summary["clients"]):
        client = {"held_out": None, "group": groups.get(name), **summary["clients"][name]}
        client.setdefault(f"leaf_{metric}", client.get(metric))
        of_leaf = summary["selection"] == "leaf"
        client[f"own_{metric}"] = client.get(metric if of_leaf else f"leaf_{metric}")
        client["share"] = client.get("served_by", {}).get("share") or None
        for key, baseline in baselines_of(summary).items():
            client[f"{key}_{metric}"] = baseline["clients"].get(name)
        clients[name] = client
    return clients


def ways_of(summary: Mapping[str, Any]) -> list[str]:
    """The models that were evaluated; with ``_<metric>`` these are fields of `all_clients`.

    ``fl``, the common model, is left out where it is the own one, and ``leaf`` likewise;
    ``best`` and ``ensemble`` are there only if the run's ``selection`` asked for them.
    """
    moved = any(step["accepted"] for step in summary["personal"].values())
    ways = ["fl"] if lasting(summary["splits"]) else []
    ways += ["leaf", "own"] if moved else ["own"]
    ways += [] if summary["selection"] == "leaf" else [summary["selection"]]
    return [*ways, *baselines_of(summary)]


def weighted(key: str, clients: Iterable[Mapping[str, Any]]) -> float | None:
    """The mean of a figure, weighted by `limited` held-out examples; None if no client has it."""
    pairs = [(one[key], one.get("held_out") or 1) for one in clients if one.get(key) is not None]
    if not pairs:
        return None
    values, sizes = np.transpose(pairs)
    return float(np.average(values, weights=limited(sizes)))
