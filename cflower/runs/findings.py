"""The summary of a run in words, and the clients' figures by model."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from cflower.algorithm.tree import ROOT, Status
from cflower.errors import RunFolderError
from cflower.messages.metrics import (
    ACCURACY,
    ClientMetrics,
    Metric,
    direction_of,
    leader_among,
    mean_over_clients,
)
from cflower.ordering import counted, in_order, only
from cflower.runs.baselines import (
    BASELINES,
    Baseline,
    Paired,
    against,
    fairness,
    fairness_in_words,
)
from cflower.runs.format import COLUMNS, OWN_FIELDS

SAME_EXAMPLES = (
    "The reported examples also decided about the clusters, because the ClientApp does not keep "
    "the two apart."
)
AGREEMENT = "Agreement with the true groups: adjusted Rand index {index:.3f} (1 is exact)."
PERSONAL = (
    "Personal step: {clients} of {leaves} have personal models, each a mix of the cluster's model "
    "and of one that the client trained alone."
)
CENTRAL = "central evaluation (evaluate_fn), mean {name} over the clusters"
TO_COME, NOT_MEASURED = "measured next", "not measured"
NOT_KEPT = "not kept by this metric"


def lasting(splits: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The splits of a summary that were not taken back."""
    return [split for split in splits if split["trial"] != Status.UNDONE]


def by_metric(summary: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The summary with another leading metric, without what was only kept for the run's own.

    Raises a `RunFolderError` that names the metrics if no client sent this one, or says that its
    direction is not known: then ``name`` ends with ``:lower`` or ``:higher``.
    """
    if name in ("", summary["metric"]["name"]):
        return summary
    clients = summary["clients"]
    numbers = {k for one in clients.values() for k in one if isinstance(one[k], int | float)}
    columns = {f"{column}_{key}" for column in COLUMNS for key in numbers}
    sent = sorted(numbers - columns - OWN_FIELDS)
    higher = direction_of(name)
    if name not in sent and name.endswith((":lower", ":higher")):
        name, _, way = name.rpartition(":")
        higher = way == "higher"
    if name not in sent:
        raise RunFolderError(
            f"Got --metric {name}, but the clients sent {', '.join(sent) or 'none'}: give one of "
            "these."
        )
    if higher is None:
        raise RunFolderError(
            f"Got --metric {name}, but its name does not show which values are better: write "
            f"--metric {name}:lower or --metric {name}:higher."
        )
    metric, kept = Metric(name, higher), {key: dict[str, Any]() for key in baselines_of(summary)}
    own = [ClientMetrics(dict(only(one, [name])), 0) for one in clients.values()]
    without_levels = {client: {**line, "levels": {}} for client, line in clients.items()}
    even = {"own": fairness(own, metric)}
    others = {"clients": without_levels, "baselines": kept, "fairness": even}
    return {**summary, "metric": metric.as_json(), **others}


def metric_of(summary: Mapping[str, Any]) -> Metric:
    """The metric that leads; no share if the clients' values are above 1."""
    metric = Metric(**summary["metric"])
    values = [client.get(metric.name) for client in summary["clients"].values()]
    return metric.seen(value for value in values if value is not None)


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
    """The result in a few sentences, and a line for each way to serve the clients.

    >>> from cflower.runs.format import NO_SUMMARY
    >>> summary = {"rounds": 1, "clusters": {"0": ["a", "b"]}, "not_split": "No split: too small."}
    >>> ended = {"finished": True, "metrics": {"accuracy": 0.5}}
    >>> print(finding({**NO_SUMMARY, **summary, **ended}))
    1 cluster among 2 clients after 1 round. No split: too small.
    Mean accuracy on held-out examples:
    - this run: 50.0%
    """
    metric, ways = metric_of(summary), ways_to_serve(summary)
    head = [f"Mean {metric.in_full} on held-out examples:"] if ways else []
    lines = [f"- {way.line(metric)}" for way in ways]
    return "\n".join([" ".join([headline(summary), *remarks(summary)]), *head, *lines])


def remarks(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on what a reader of the figures has to know."""
    sentences = [summary["not_split"]] if summary["not_split"] else []
    if (index := summary["adjusted_rand_index"]) is not None:
        sentences.append(AGREEMENT.format(index=index))
    steps = summary["personal"].values()
    if own := sum(step["clients"] for step in steps):
        leaves = counted(sum(step["clients"] > 0 for step in steps), "cluster")
        sentences.append(PERSONAL.format(clients=counted(own, "client"), leaves=leaves))
    if summary.get("decided_by") == "reported":
        sentences.append(SAME_EXAMPLES)
    return sentences


class Way(NamedTuple):
    """One way to serve the clients, evaluated on their held-out examples."""

    key: str
    """``own`` (this run), ``fl`` (its common model), ``central``, or a baseline."""
    words: str
    mean: float | None
    """Of the leading metric; None if it was not measured."""
    remark: str = ""
    """The fairness, or why there is no mean."""
    compared: Paired | None = None
    """This run against it."""

    @property
    def against(self) -> str:
        """The comparison in words; empty without one."""
        return f"This run against it: {self.compared.sentence}." if self.compared else ""

    def line(self, metric: Metric) -> str:
        """The figures in one line."""
        if self.mean is None:
            return f"{self.words}: {self.remark}"
        remark = f" ({self.remark})" if self.remark else ""
        return f"{self.words}: {metric.in_words(self.mean)}{remark}. {self.against}".rstrip(". ")


def personal_steps(summary: Mapping[str, Any]) -> dict[str, str]:
    """The result of each leaf's personal step in one sentence, as in the log."""
    results = {True: "accepted", False: "refused"}
    return {
        leaf: f"personal step {results[step['accepted']]}: {step['reason']}"
        for leaf, step in summary["personal"].items()
    }


def ways_to_serve(summary: Mapping[str, Any]) -> list[Way]:
    """This run and what it is compared with, as far as they were measured or are to come."""
    metric, means, ways = metric_of(summary), summary["metrics"], list[Way]()
    clients = summary["clients"].values()
    planned = summary["baselines"] or {}
    if metric.name in means:
        fair = fairness_in_words(summary["fairness"].get("own", {}), metric)
        known = sum(one.get(metric.name) is not None for one in clients)
        remark = ", ".join(filter(None, [of_all(known, summary), fair]))
        ways.append(Way("own", "this run", means[metric.name], remark))
        if lasting(summary["splits"]):  # else the common model is the run's
            ways.append(Way("fl", common_in_words(summary), means.get(f"fl_{metric.name}")))
            planned = {"federated": None, **planned}
    ways += [baseline_way(summary, key) for key in BASELINES if key in planned]
    if name := central_metric(summary):
        ways.append(Way("central", CENTRAL.format(name=name), summary["central"][name]))
    return ways


def baseline_way(summary: Mapping[str, Any], key: Baseline) -> Way:
    """A baseline that was measured, is to come, or would be good to know."""
    metric, baselines = metric_of(summary), summary["baselines"] or {}
    if not (line := baselines.get(key)):
        to_come = TO_COME if key in baselines else NOT_MEASURED
        return Way(key, BASELINES[key], None, to_come if line is None else NOT_KEPT)
    test, fair = against(summary, line["clients"], metric), fairness_in_words(line, metric)
    remark = ", ".join(filter(None, [of_all(len(line["clients"]), summary), fair]))
    return Way(key, BASELINES[key], line[metric.name], remark, test)


def of_all(known: int, summary: Mapping[str, Any]) -> str:
    """How many of the clients a mean is of; empty for all of them.

    >>> of_all(1, {"clusters": {"0.0": ["a"], "0.1": ["b"]}})
    'of 1 of 2 clients'
    """
    members = sum(map(len, summary["clusters"].values()))
    return f"of {known} of {counted(members, 'client')}" if 0 < known < members else ""


def central_metric(summary: Mapping[str, Any]) -> str:
    """The metric shown of the central evaluation: the leading one, or an accuracy in its place.

    Empty without a central evaluation by one of these.
    """
    sent, leads = summary.get("central", {}), summary["metric"]["name"]
    if leads in sent or not leader_among([leads], ACCURACY):
        return leads if leads in sent else ""
    return leader_among(sent, ACCURACY)


def common_in_words(summary: Mapping[str, Any]) -> str:
    """Name the common model: the mean of the leaves' models, or θ* of a split that is final.

    >>> common_in_words({"common_rounds": 8, "rounds": 30, "splits": []})
    'common model (trained in 8 of 30 rounds)'
    """
    if any(split["cluster"] == ROOT and split["trial"] for split in lasting(summary["splits"])):
        return "common model (mean of the clusters' models)"
    rounds = counted(summary["rounds"], "round")
    return f"common model (trained in {summary['common_rounds']} of {rounds})"


def all_clients(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The clients in natural order, with their groups and their metric in each of `ways_of`.

    As far as the run has come: ``held_out`` and the values under other models may be None.
    """
    metric, groups, clients = summary["metric"]["name"], summary["groups"] or {}, {}
    for name in in_order(summary["clients"]):
        client = {"held_out": None, **summary["clients"][name], "group": groups.get(name)}
        client[f"own_{metric}"] = client.get(metric)
        client.setdefault(f"leaf_{metric}", client.get(metric))
        client["share"] = client.get("served_by", {}).get("share") or None
        for key, baseline in baselines_of(summary).items():
            client[f"{key}_{metric}"] = baseline["clients"].get(name)
        clients[name] = client
    return clients


def ways_of(summary: Mapping[str, Any]) -> list[str]:
    """The models that were evaluated; with ``_<metric>`` these are fields of `all_clients`.

    ``fl``, the common model, and ``leaf``, the cluster's, are left out where they are the one that
    serves the clients, ``own``.
    """
    other = any(step["clients"] for step in summary["personal"].values())
    common = ["fl"] if lasting(summary["splits"]) else []
    leaf = ["leaf"] if other or summary["selection"] != "leaf" else []
    return [*common, *leaf, "own", *baselines_of(summary)]


def weighted(key: str, clients: Iterable[Mapping[str, Any]]) -> float | None:
    """The mean of a figure, weighted by `limited` held-out examples; None if no client has it."""
    having = [one for one in clients if one.get(key) is not None]
    measured = [ClientMetrics({key: one[key]}, one.get("held_out") or 1) for one in having]
    return cast("float | None", mean_over_clients(measured).get(key))
