"""Which method serves the clients of a run best: a table, and one sentence of advice."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from rich.table import Table

from cflower.metric import Metric
from cflower.ordering import counted
from cflower.runs.baselines import Paired, against, difference_in_words
from cflower.runs.records import BaselineLine, Metrics, Summary
from cflower.runs.tables import shown, starred, table_of

METHODS = {
    "isolated": ("each client alone", "no federation is needed"),
    "federated": ("conventional FL", "with FedAvg"),
    "fedprox": ("FedProx", "with method='fedprox'"),
    "fedper": ("FedPer", "with method='fedper'"),
    "fedrep": ("FedRep", "with method='fedrep'"),
    "fedbn": ("FedBN", "with method='fedbn'"),
    "tuned": ("conventional FL, then alone", "with FedAvg and further training at each client"),
    "ditto": ("Ditto", "with method='ditto'"),
    "clustered": ("clusters", "with ClusteredFL(personal=False)"),
    "own": ("clusters, then personal", "with ClusteredFL"),
}
"""The methods in words and what each needs, the simplest first."""
ALONE = "isolated"
USE = "Use {method} ({needs}): "
UNSURE = (
    "{method} has the best mean, but there are too few clients or held-out examples to tell "
    "whether by more than chance."
)


class Method(NamedTuple):
    """One method with its result on the clients' held-out examples."""

    key: str
    words: str
    needs: str
    mean: float
    values: Metrics
    """The leading metric of each client."""
    trainings: float | None
    """Of a client, on average."""
    num_bytes: int | None
    """Sent by the server and the clients."""


def methods_of(summary: Summary) -> list[Method]:
    """The methods that were measured, the simplest first: the baselines, and the run itself."""
    name = summary.leading.name
    lines = {**summary.measured, "own": run_line(summary)}
    methods = []
    for key, (words, needs) in METHODS.items():
        if key == "own" and not summary.personal:
            words, needs = METHODS["clustered"]
        if line := lines.get(key):
            mean, figures = line.figures.get(name), (line.clients, line.trainings, line.bytes)
            methods += [] if mean is None else [Method(key, words, needs, mean, *figures)]
    return methods


def run_line(summary: Summary) -> BaselineLine:
    """The run itself, as its baselines are described."""
    name = summary.leading.name
    values = {client: one.figures.get(name) for client, one in summary.clients.items()}
    trainings = [one.trainings for one in summary.clients.values()]
    known: dict[str, Any] = {name: summary.metrics.get(name), "bytes": summary.bytes}
    known["clients"] = {client: value for client, value in values.items() if value is not None}
    return BaselineLine(**known, trainings=fmean(trainings) if trainings else None)


def method_rows(summary: Summary) -> list[dict[str, str]]:
    """The table of `methods_of`, as texts by heading."""
    metric, methods = summary.leading, methods_of(summary)
    means = starred([method.mean for method in methods], metric)
    rows = []
    for method, best in zip(methods, means, strict=True):
        row = {"method": method.words, f"mean\n{metric.name}": best}
        row["worst\nclient"] = metric.in_words(metric.worst(method.values.values()))
        row["worse than\nalone"] = shown(worse_than_alone(method, methods, metric))
        row["trainings\na client"] = shown(method.trainings, ".3g")
        size = None if method.num_bytes is None else method.num_bytes / 1e6
        rows.append(row | {"MB\nsent": shown(size, ".3g")})
    return rows


def worse_than_alone(method: Method, methods: list[Method], metric: Metric) -> str | None:
    """How many clients are better off alone; None for these, and if that was not measured."""
    alone = next((one.values for one in methods if one.key == ALONE), {})
    if method.key == ALONE or not alone:
        return None
    common = [name for name in method.values if name in alone]
    worse = [n for n in common if metric.best((method.values[n], alone[n])) != method.values[n]]
    return f"{len(worse)} of {len(common)}"


def method_table(summary: Summary) -> Table:
    title = f"{summary.leading.in_full} of the clients by method (* = best)"
    return table_of(title, method_rows(summary))


def advice(summary: Summary) -> str:
    """One sentence: the simplest method that no other one beats by more than chance.

    A method with a worse mean than a simpler one is not advised.
    """
    metric, methods = summary.leading, methods_of(summary)
    if len(methods) < 2:
        return ""
    best_mean = metric.best(one.mean for one in methods)
    best = next(one for one in methods if one.mean == best_mean)
    others = {one.key: one for one in methods if one is not best}
    compared = {key: compare(best, one, summary, metric) for key, one in others.items()}
    if all(pair is None or pair.margin is None for pair in compared.values()):
        return UNSURE.format(method=capital(best.words))
    use = simplest(methods, compared, metric)
    sentence = USE.format(method=use.words, needs=use.needs)
    if use is not best:
        gain = difference_in_words(abs(best.mean - use.mean), metric)
        better = f"the better mean of {best.words} (by {gain})"
        return f"{sentence}it is simpler, and {better} may be chance."
    second = others.get("federated", next(iter(others.values())))
    return f"{sentence}{reason(best, second, compared[second.key], metric)}."


def simplest(
    methods: Sequence[Method], compared: Mapping[str, Paired | None], metric: Metric
) -> Method:
    """The first method that the best one does not beat, with no worse mean than any before it.

    ``compared`` are the comparisons of the best method with each other one.
    """
    beaten = {key for key, pair in compared.items() if pair and pair.verdict == "worth it"}
    means = [one.mean for one in methods]
    leading = (one for i, one in enumerate(methods) if metric.best(means[: i + 1]) == one.mean)
    return next(one for one in leading if one.key not in beaten)


def reason(best: Method, other: Method, pair: Paired | None, metric: Metric) -> str:
    """The difference of the best method to another one, in words."""
    text = f"{metric.name} {metric.in_words(best.mean)}"
    if pair is None:
        return text
    difference = difference_in_words(pair.difference, metric, "+")
    better = counted(pair.better, "client")
    return f"{text}, {difference} against {other.words}; {better} better, {pair.worse} worse"


def compare(best: Method, other: Method, summary: Summary, metric: Metric) -> Paired | None:
    """The paired comparison of two methods by client."""
    clients = {
        name: summary.clients[name].model_copy(update={metric.name: value})
        for name, value in best.values.items()
        if name in summary.clients
    }
    return against(clients, other.values, metric)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
