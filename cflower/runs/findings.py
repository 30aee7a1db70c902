"""The summary of a run in words, and the clients' figures by model."""

from collections.abc import Mapping
from typing import Any

from cflower.algorithm.tree import ROOT
from cflower.errors import RunFolderError
from cflower.metric import ACCURACY, Metric, direction_of, leader_among
from cflower.ordering import counted, listed
from cflower.pooled import POOLED
from cflower.runs.answer import advice, answer
from cflower.runs.records import BaselineLine, Summary
from cflower.runs.ways import BASELINES, Ways
from cflower.strategy.round_log import outcome_of

PREFIXES = ("fl", "leaf", "best", "ensemble")
"""The ways to serve a client; each prefixes a metric of a client in the summary."""
SAME_EXAMPLES = (
    "These figures may be a little too good: the same examples decided about the clusters "
    "(own-app.md, Examples that decide)."
)
AGREEMENT = (
    "The clusters and the true groups have an adjusted Rand index of {index:.3f} (1: equal)."
)
PERSONAL = (
    "{clients} of {leaves} have models of their own: {share} of each is what the client trained "
    "further{rest}."
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
    others = {
        "metric": metric,
        "clients": clients,
        "baselines": {key: BaselineLine() for key in summary.measured},
    }
    return summary.model_copy(update=others)


def metrics_of(summary: Summary) -> list[str]:
    numbers = {name for one in summary.clients.values() for name in one.figures}
    return sorted(numbers - {f"{column}_{name}" for column in PREFIXES for name in numbers})


def chosen_metric(name: str, sent: list[str]) -> Metric:
    """The metric that ``--metric`` names; ``:lower`` or ``:higher`` after it is its direction."""
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


def finding(summary: Summary) -> str:
    """The answer, what a reader has to know, and a line for each way to serve the clients.

    >>> run = {"rounds": 1, "clusters": {"0": ["a", "b"]}, "clients": {}, "finished": True}
    >>> why = {"not_split": "No split: too small.", "metrics": {"accuracy": 0.5}}
    >>> print(finding(Summary(run_id="", **run, **why)))
    No groups are found: one model serves all 2 clients, 50.0% right.
    No split: too small.
    Mean accuracy on held-out examples:
    - this run: 50.0%
    """
    ways = Ways(summary)
    metric, lines = ways.metric, way_lines(ways)
    head = f"Mean {metric.in_full} on held-out examples:"
    if metric.name in POOLED and summary.pooled:
        head = f"{metric.in_full} of all clients' held-out examples together:"
    more = " ".join(filter(None, [*why(summary), advice(ways), *details(summary)]))
    texts = [f"- {in_one_line(line, metric)}" for line in lines]
    return "\n".join([answer(ways), *filter(None, [more]), *([head] if lines else []), *texts])


def why(summary: Summary) -> list[str]:
    """Why there is one cluster; empty if there are more."""
    if summary.not_split and (asked := [one for one in summary.refused if one.cluster == ROOT]):
        result = asked[-1].reason.partition(";")[0]
        number = asked[-1].round
        return [f"The clients were last asked in round {number}, and no gain was shown: {result}."]
    return [summary.not_split] if summary.not_split else []


def details(summary: Summary) -> list[str]:
    """Further sentences for whoever reads the figures closely."""
    sentences, index = list[str](), summary.adjusted_rand_index
    if index is not None:
        exact = "All clients are in the right group (adjusted Rand index 1.000)."
        sentences.append(exact if index == 1 else AGREEMENT.format(index=index))
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
    rest = "" if ends == ["100%"] else ", the rest its cluster's model"
    return {"share": " to ".join(dict.fromkeys([*ends[:1], *ends[-1:]])) or "part", "rest": rest}


def personal_steps(summary: Summary) -> dict[str, str]:
    """The result of each leaf's personal step in one sentence, as in the log."""
    return {
        leaf: f"personal step {outcome_of(step.accepted, step.evaluations)}: {step.reason}"
        for leaf, step in summary.personal.items()
    }


def way_lines(ways: Ways) -> list[dict[str, Any]]:
    """This run and what it is compared with, as far as they were measured or are to come.

    ``remark`` is the fairness, or why there is no mean; ``against`` how this run compares with it.
    """
    summary, lines = ways.summary, list[dict[str, Any]]()
    planned = {*(summary.baselines or ())}
    keys = ["own"] if ways["own"].mean is not None else []
    if keys and summary.lasting:  # else the common model is the run's
        keys.append("fl")
        planned.add("federated")
    for key in [*keys, *(key for key in BASELINES if key in planned)]:
        mean, against = None, ""
        if key not in ways:
            remark = TO_COME if key in (summary.baselines or ()) else NOT_MEASURED
        elif key in summary.measured and not summary.measured[key].rounds:
            remark = NOT_KEPT
        else:
            mean, remark = ways[key].mean, ways.remark(key)
            if key in BASELINES and (pair := ways.against(key)):
                against = f"This run against it: {pair.sentence}."
        line = {"key": key, "words": ways.in_words(key), "mean": mean}
        lines.append(line | {"remark": remark, "against": against})
    if central := central_metric(summary):
        line = {"key": "central", "words": CENTRAL.format(name=central), "remark": ""}
        lines.append(line | {"mean": summary.central[central], "against": ""})
    return lines


def in_one_line(line: Mapping[str, Any], metric: Metric) -> str:
    if line["mean"] is None:
        return f"{line['words']}: {line['remark'] or NOT_MEASURED}"
    remark = f" ({line['remark']})" if line["remark"] else ""
    return f"{line['words']}: {metric.in_words(line['mean'])}{remark}. {line['against']}".rstrip(
        ". "
    )


def central_metric(summary: Summary) -> str:
    """The metric shown of the central evaluation: the leading one, or an accuracy in its place."""
    leads = summary.metric.name
    if leads in summary.central:
        return leads
    return leader_among(summary.central, ACCURACY) if leader_among([leads], ACCURACY) else ""
