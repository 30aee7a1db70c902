"""The summary of a run in words, and the clients' figures by model."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from cflower.algorithm.tree import ROOT
from cflower.errors import RunFolderError
from cflower.messages.metrics import ClientMetrics, mean_over_clients
from cflower.metric import ACCURACY, Metric, direction_of, leader_among
from cflower.ordering import counted, in_order, listed
from cflower.pooled import POOLED
from cflower.runs.baselines import BASELINES, Paired, against, fairness, fairness_in_words
from cflower.runs.records import BaselineLine, ClientLine, LeadingMetric, Number, Summary
from cflower.strategy.round_log import outcome_of

COLUMNS = ("fl", "leaf", "best", "ensemble")
"""The ways to serve a client; each prefixes a metric of a client in the summary."""
SAME_EXAMPLES = (
    "The reported examples also decided about the clusters, because the ClientApp does not keep "
    "the two apart."
)
AGREEMENT = "Agreement with the true groups: adjusted Rand index {index:.3f} (1 is exact)."
PERSONAL = (
    "Personal step: {clients} of {leaves} have personal models, {share} of each from a model that "
    "the client trained alone{rest}."
)
NOT_PLACED = (
    "In no cluster, because no usable update came: {clients} ({names}); the common model serves "
    "such a client."
)
CENTRAL = "central evaluation (evaluate_fn), mean {name} over the clusters"
TO_COME, NOT_MEASURED = "measured next", "not measured; `cflower try` compares methods"
NOT_KEPT = "not kept by this metric"


def led_by(summary: Summary, name: str) -> Summary:
    """The summary with another leading metric, without what was only kept for the run's own."""
    if name in ("", summary.metric.name):
        return summary
    metric = chosen_metric(name, metrics_of(summary))
    clients = {n: one.model_copy(update={"levels": {}}) for n, one in summary.clients.items()}
    even = fairness((one.figures.get(metric.name) for one in clients.values()), metric)
    others = {
        "metric": LeadingMetric(name=metric.name, higher_is_better=metric.higher_is_better),
        "clients": clients,
        "baselines": {key: BaselineLine() for key in summary.measured},
        "fairness": {"own": even} if even else {},
    }
    return summary.model_copy(update=others)


def metrics_of(summary: Summary) -> list[str]:
    """The names of the metrics that the clients sent."""
    numbers = {name for one in summary.clients.values() for name in one.figures}
    return sorted(numbers - {f"{column}_{name}" for column in COLUMNS for name in numbers})


def chosen_metric(name: str, sent: list[str]) -> Metric:
    """The metric that ``--metric`` names; ``:lower`` or ``:higher`` after it is its direction.

    Raises a `RunFolderError` if no client sent it, or if its direction is not known.
    """
    bare, _, direction = name.rpartition(":")
    higher = {"lower": False, "higher": True}.get(direction)
    if name in sent or higher is None:
        bare, higher = name, direction_of(name)
    if bare not in sent:
        raise RunFolderError(
            f"Got --metric {bare}, but the clients sent {', '.join(sent) or 'none'}: give one of "
            "these."
        )
    if higher is None:
        raise RunFolderError(
            f"Got --metric {bare}, but its name does not show which values are better: write "
            f"--metric {bare}:lower or --metric {bare}:higher."
        )
    return Metric(bare, higher)


def headline(summary: Summary, parts: str = "cluster", link: str = "among") -> str:
    """The result in one sentence.

    >>> headline(Summary(run_id="", rounds=1, clusters={"0": ["a", "b"]}, clients={}))
    '1 cluster among 2 clients so far, after 1 round.'
    """
    so_far = "" if summary.finished else "so far, "
    return (
        f"{counted(len(summary.clusters), parts)} {link} {counted(summary.num_clients, 'client')} "
        f"{so_far}after {counted(summary.rounds, 'round')}."
    )


def finding(summary: Summary) -> str:
    """The result in a few sentences, and a line for each way to serve the clients.

    >>> run = {"rounds": 1, "clusters": {"0": ["a", "b"]}, "clients": {}, "finished": True}
    >>> why = {"not_split": "No split: too small.", "metrics": {"accuracy": 0.5}}
    >>> print(finding(Summary(run_id="", **run, **why)))
    1 cluster among 2 clients after 1 round. No split: too small.
    Mean accuracy on held-out examples:
    - this run: 50.0%
    """
    metric, ways = summary.leading, ways_to_serve(summary)
    head = f"Mean {metric.in_full} on held-out examples:"
    if metric.name in POOLED and summary.pooled:
        head = f"{metric.in_full} of all clients' held-out examples together:"
    lines = [f"- {way.line(metric)}" for way in ways]
    head_lines = [head] if ways else []
    return "\n".join([" ".join([headline(summary), *remarks(summary)]), *head_lines, *lines])


def remarks(summary: Summary) -> list[str]:
    """Sentences on what a reader of the figures has to know."""
    sentences = [summary.not_split] if summary.not_split else []
    if summary.adjusted_rand_index is not None:
        sentences.append(AGREEMENT.format(index=summary.adjusted_rand_index))
    with_own = [step.clients for step in summary.personal.values() if step.clients]
    if with_own:
        clients, leaves = counted(sum(with_own), "client"), counted(len(with_own), "cluster")
        sentences.append(PERSONAL.format(clients=clients, leaves=leaves, **shares(summary)))
    if summary.decided_by == "reported":
        sentences.append(SAME_EXAMPLES)
    if summary.not_placed:
        clients = counted(len(summary.not_placed), "client")
        sentences.append(NOT_PLACED.format(clients=clients, names=listed(summary.not_placed, 5)))
    return sentences


def shares(summary: Summary) -> dict[str, str]:
    """How much of the personal models the clients trained alone, in the words of `PERSONAL`."""
    every = {f"{one.share:.0%}" for one in summary.clients.values() if one.share}
    ends = sorted(every, key=lambda share: int(share[:-1]))
    rest = "" if ends == ["100%"] else ", the rest from the cluster's"
    return {"share": " to ".join(dict.fromkeys([*ends[:1], *ends[-1:]])) or "part", "rest": rest}


def personal_steps(summary: Summary) -> dict[str, str]:
    """The result of each leaf's personal step in one sentence, as in the log."""
    return {
        leaf: f"personal step {outcome_of(step.accepted, step.evaluations)}: {step.reason}"
        for leaf, step in summary.personal.items()
    }


class Way(NamedTuple):
    """One way to serve the clients, evaluated on their held-out examples."""

    key: str
    """``own`` (this run), ``fl`` (its common model), ``central``, or a baseline."""
    words: str
    mean: Number | None
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
            return f"{self.words}: {self.remark or NOT_MEASURED}"
        remark = f" ({self.remark})" if self.remark else ""
        return f"{self.words}: {metric.in_words(self.mean)}{remark}. {self.against}".rstrip(". ")


def ways_to_serve(summary: Summary) -> list[Way]:
    """This run and what it is compared with, as far as they were measured or are to come."""
    name, ways, baselines = summary.metric.name, list[Way](), {*(summary.baselines or ())}
    if name in summary.metrics:
        ways.append(way_of("own", "this run", summary))
        if summary.lasting:  # else the common model is the run's
            ways.append(way_of("fl", common_in_words(summary), summary))
            baselines.add("federated")
    ways += [baseline_way(summary, key) for key in BASELINES if key in baselines]
    if central := central_metric(summary):
        value = summary.central[central]
        ways.append(Way("central", CENTRAL.format(name=central), value))
    return ways


def way_of(key: str, words: str, summary: Summary) -> Way:
    """This run, or its common model."""
    metric = summary.leading
    prefix = "" if key == "own" else f"{key}_"
    figures = [one.figures.get(prefix + metric.name) for one in summary.clients.values()]
    known = sum(value is not None for value in figures)
    fair = fairness_in_words(summary.fairness.get(key), metric) if key == "own" else ""
    some = "" if metric.name in POOLED and summary.pooled else of_all(known, summary.num_clients)
    remark = ", ".join(filter(None, [some, fair]))
    return Way(key, words, summary.metrics.get(prefix + metric.name), remark)


def baseline_way(summary: Summary, key: str) -> Way:
    """A baseline that was measured, is to come, or would be good to know."""
    metric, planned, words = summary.leading, summary.baselines or {}, BASELINES[key]
    line = planned.get(key)
    if line is None:
        return Way(key, words, None, TO_COME if key in planned else NOT_MEASURED)
    if not line.rounds:
        return Way(key, words, None, NOT_KEPT)
    fair = fairness_in_words(line, metric)
    remark = ", ".join(filter(None, [of_all(len(line.clients), summary.num_clients), fair]))
    test = against(summary.clients, line.clients, metric)
    return Way(key, words, line.figures.get(metric.name), remark, test)


def of_all(known: int, members: int) -> str:
    """How many of the clients a mean is of; empty for all of them.

    >>> of_all(1, 2)
    'of 1 of 2 clients'
    """
    return f"of {known} of {counted(members, 'client')}" if 0 < known < members else ""


def central_metric(summary: Summary) -> str:
    """The metric shown of the central evaluation: the leading one, or an accuracy in its place.

    Empty without a central evaluation by one of these.
    """
    leads = summary.metric.name
    if leads in summary.central:
        return leads
    return leader_among(summary.central, ACCURACY) if leader_among([leads], ACCURACY) else ""


def common_in_words(summary: Summary) -> str:
    """Name the common model: the mean of the leaves' models, or θ* of a split that is final.

    >>> run = {"rounds": 30, "common_rounds": 8, "clusters": {}, "clients": {}}
    >>> common_in_words(Summary(run_id="", **run))
    'common model (trained in 8 of 30 rounds)'
    """
    if any(split.cluster == ROOT and split.trial for split in summary.lasting):
        return "common model (mean of the clusters' models)"
    return (
        f"common model (trained in {summary.common_rounds} of {counted(summary.rounds, 'round')})"
    )


class Row(NamedTuple):
    """A client as tables show it."""

    client: ClientLine
    group: Any
    """The true group, if it is known."""
    values: Mapping[str, Number | None]
    """The leading metric by each way to serve it; None where it is not known (yet)."""


def rows_of(summary: Summary) -> dict[str, Row]:
    """The clients in natural order."""
    metric, groups, rows = summary.metric.name, summary.groups or {}, {}
    measured = summary.measured
    for name in in_order(summary.clients):
        client = summary.clients[name]
        own = client.figures.get(metric)
        values = {
            "own": own,
            "leaf": client.figures.get(f"leaf_{metric}", own),
            "fl": client.figures.get(f"fl_{metric}"),
            **{key: line.clients.get(name) for key, line in measured.items()},
        }
        rows[name] = Row(client, groups.get(name), values)
    return rows


def ways_of(summary: Summary) -> list[str]:
    """The models that were evaluated.

    ``fl``, the common model, and ``leaf``, the cluster's, are left out where they are the one that
    serves the clients, ``own``.
    """
    other = any(step.clients for step in summary.personal.values())
    common = ["fl"] if summary.lasting else []
    leaf = ["leaf"] if other or summary.selection != "leaf" else []
    return [*common, *leaf, "own", *summary.measured]


def weighted(way: str, rows: Iterable[Row]) -> float | None:
    """The mean by one way, weighted by `limited` held-out examples; None if no client has it."""
    values = [(row.values[way], row.client.held_out or 1) for row in rows]
    known = [ClientMetrics({"": value}, size) for value, size in values if value is not None]
    return cast("float | None", mean_over_clients(known).get(""))
