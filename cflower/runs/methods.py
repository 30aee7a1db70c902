"""Which method serves the clients of a run best: a table, and one sentence of advice."""

from collections.abc import Mapping

from rich.table import Table

from cflower.metric import Metric
from cflower.ordering import counted
from cflower.runs.tables import shown, starred, table_of
from cflower.runs.ways import Paired, Way, Ways, difference_in_words

ALONE = "isolated"
USE = "Use {method} ({needs}): "
UNSURE = (
    "{method} has the best mean, but there are too few clients or held-out examples to tell "
    "whether by more than chance."
)


def method_rows(ways: Ways) -> list[dict[str, str]]:
    """The table of the methods, as texts by heading."""
    metric, methods = ways.metric, ways.methods
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


def worse_than_alone(method: Way, methods: list[Way], metric: Metric) -> str | None:
    """How many clients are better off alone; None for these, and if that was not measured."""
    alone = next((one.values for one in methods if one.key == ALONE), {})
    if method.key == ALONE or not alone:
        return None
    common = [name for name in method.values if name in alone]
    worse = [n for n in common if metric.best((method.values[n], alone[n])) != method.values[n]]
    return f"{len(worse)} of {len(common)}"


def method_table(ways: Ways) -> Table:
    title = f"{ways.metric.in_full} of the clients by method (* = best)"
    return table_of(title, method_rows(ways))


def advice(ways: Ways) -> str:
    """One sentence: the simplest method that no other one beats by more than chance.

    A method with a worse mean than a simpler one is not advised.
    """
    metric, methods = ways.metric, {way.key: way for way in ways.methods}
    means = {key: way.mean for key, way in methods.items() if way.mean is not None}
    if len(means) < 2:
        return ""
    best = next(key for key, mean in means.items() if mean == metric.best(means.values()))
    pairs = {key: ways.against(key, best) for key in means if key != best}
    name = methods[best].words
    if all(pair is None or pair.margin is None for pair in pairs.values()):
        return UNSURE.format(method=name[:1].upper() + name[1:])
    use = simplest(means, pairs, metric)
    sentence = USE.format(method=methods[use].words, needs=methods[use].needs)
    if use != best:
        gain = difference_in_words(abs(means[best] - means[use]), metric)
        return f"{sentence}it is simpler, and the better mean of {name} (by {gain}) may be chance."
    second = next(key for key in ("federated", *pairs) if key in pairs)
    text, pair = f"{sentence}{metric.name} {metric.in_words(means[best])}", pairs[second]
    if pair is None:
        return f"{text}."
    difference = difference_in_words(pair.difference, metric, "+")
    better = counted(pair.better, "client")
    against = f"{difference} against {methods[second].words}; {better} better, {pair.worse} worse"
    return f"{text}, {against}."


def simplest(
    means: Mapping[str, float], compared: Mapping[str, Paired | None], metric: Metric
) -> str:
    """The first method that the best one does not beat, with no worse mean than any before it.

    ``compared`` are the comparisons of the best method with each other one.
    """
    beaten = {key for key, pair in compared.items() if pair and pair.verdict == "worth it"}
    values = list(means.values())
    leading = [key for i, key in enumerate(means) if metric.best(values[: i + 1]) == values[i]]
    return next(key for key in leading if key not in beaten)
