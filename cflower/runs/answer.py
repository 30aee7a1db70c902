"""The answer of a run in one sentence each: how well its clients are served, and by which method.

A gain is claimed only where it is shown: where the interval of the difference on the clients'
held-out examples is on one side of zero (`Paired.verdict`).
"""

from collections.abc import Mapping

from cflower.algorithm.tree import ROOT
from cflower.metric import ACCURACY, Metric, leader_among
from cflower.ordering import counted
from cflower.pooled import NORMAL
from cflower.runs.ways import MEAN_MODEL, Paired, Ways, difference_in_words, student

LETTERS = "no one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905
ALONE = "isolated"
POWER = 0.8416212335729143
"""The 80 % quantile of the normal distribution: the power with which a gain should be found."""
MOST_TIMES = 100
"""More times as many examples than this are no use to anybody."""
UNSURE = (
    "{method} has the best mean, but there are too few clients or held-out examples to tell "
    "whether by more than chance."
)


def answer(ways: Ways) -> str:
    """The result of a run in one sentence.

    >>> from cflower.runs.records import Summary
    >>> print(answer(Ways(Summary(run_id="", rounds=1, clusters={"0": ["a", "b"]}, clients={}))))
    So far, after 1 round: one model for 2 clients.
    """
    summary = ways.summary
    groups = sum(map(bool, summary.clusters.values()))
    everyone = counted(summary.num_clients, "client")
    if not summary.finished:
        parts = f"{everyone} in {in_letters(groups)} groups"
        parts = parts if groups > 1 else f"one model for {everyone}"
        return f"So far, after {counted(summary.rounds, 'round')}: {parts}."
    if groups > 1 and not summary.splits:
        return f"Each of the {everyone} trains alone{figures(ways, ': ')}."
    return by_groups(ways, groups) if groups > 1 else by_one_model(ways, everyone)


def by_groups(ways: Ways, groups: int) -> str:
    """The answer of a run with several clusters."""
    number, clients = in_letters(groups), ways.summary.num_clients
    measured = "federated" in ways and ways["federated"].mean is not None
    other = "federated" if measured else "fl"
    pair = ways.against(other)
    if pair is None or pair.verdict == "worth it":
        if pair is None:
            who = f"{counted(clients, 'client')} in {number} groups"
        else:
            alone = ways.against(ALONE)
            # Else it contradicts the advice that nothing is shown to be better than each alone.
            than = " than by one model" if alone and alone.verdict != "worth it" else ""
            who = better_off(pair, clients, f"in {number} groups{than}")
        return f"{who}{figures(ways, ': ', {other: with_common(ways, other, number)})}."
    common = with_common(ways, other, number)
    if pair.verdict == "not worth it":
        who = f"{capital(common)} serves the {clients} clients better than {number} groups"
    else:
        who = f"{capital(number)} groups are not shown to serve the {clients} clients better "
        who += f"than {common}"
    return f"{who}{figures(ways, ': ', {other: 'it'})}."


def by_one_model(ways: Ways, everyone: str) -> str:
    """The answer of a run with one cluster at the end."""
    summary = ways.summary
    if any(step.clients for step in summary.personal.values()) and (pair := ways.against("leaf")):
        if pair.verdict == "worth it":
            who = better_off(pair, summary.num_clients, "by models of their own")
        else:
            who = f"Models of their own are not shown to serve the {everyone} better"
        return f"{who}{figures(ways, ': ', {'leaf': 'one model for all'})}."
    refused = any(line.cluster == ROOT for line in summary.refused) or bool(summary.splits)
    if refused:
        why = "separate models are not shown to serve them better"
        return f"One model serves all {everyone}{figures(ways, ', ')}: {why}."
    found = "No groups are found: one" if summary.not_split else "One"
    return f"{found} model serves all {everyone}{figures(ways, ', ')}."


def better_off(pair: Paired, clients: int, how: str) -> str:
    if pair.better == pair.clients:
        some = "" if pair.clients == clients else " that were evaluated"
        return f"All {counted(pair.clients, 'client')}{some} are served better {how}"
    worse = f", {pair.worse} worse" if pair.worse else ""
    return f"{pair.better} of {counted(pair.clients, 'client')} are served better {how}{worse}"


def with_common(ways: Ways, other: str, groups: str) -> str:
    """The model that groups are compared with."""
    if other == "federated":
        return "one model for all"
    if ways.in_words("fl").startswith(MEAN_MODEL):
        return f"the average of the {groups} models"
    return f"the common model of round {ways.summary.common_rounds}"


def figures(ways: Ways, before: str, others: Mapping[str, str] | None = None) -> str:
    """The mean of the run and of other ways, each with its name; empty if it is not known."""
    metric, mean = ways.metric, ways["own"].mean
    if mean is None:
        return ""
    right = metric.share and leader_among([metric.name], ACCURACY)
    value = metric.in_words(mean)
    text = f"{before}{value} right" if right else f"{before}{metric.title} {value}"
    names = {**(others or {}), ALONE: "each client alone"}
    for key, name in names.items():
        if key in ways and (other := ways[key].mean) is not None:
            text += f", {metric.in_words(other)} with {name}"
    return text if metric.higher_is_better else f"{text} (lower is better)"


def advice(ways: Ways) -> str:
    """One sentence or two: the simplest method that no other one beats by more than chance.

    A method with a worse mean than a simpler one is not advised. That no federation is needed is
    said only if training alone is shown to be better than the methods that aggregate.
    """
    metric, methods = ways.metric, {way.key: way for way in ways.methods}
    means = {key: way.mean for key, way in methods.items() if way.mean is not None}
    if len(means) < 2:
        return ""
    best = next(key for key, mean in means.items() if mean == metric.best(means.values()))
    pairs = {key: pair for key in means if key != best and (pair := ways.against(key, best))}
    name = methods[best].words
    if all(pair.margin is None for pair in pairs.values()):
        return UNSURE.format(method=capital(name))
    compared = {key: mean for key, mean in means.items() if key in {best, *pairs}}
    use = simplest(compared, pairs, metric)
    words, needs = methods[use].words, methods[use].needs
    if use != best:
        size = difference_in_words(abs(pairs[use].difference), metric)
        chance = f"the better mean of {name} (by {size}) may be chance."
        if use == ALONE:
            text = f"No method is shown to be better than {words}: {chance}"
        else:
            text = f"Use {words} ({needs}): it is simpler, and {chance}"
        return f"{text} {examples_needed(pairs[use])}".rstrip()
    if use == ALONE and any(pair.verdict == "may be chance" for pair in pairs.values()):
        return f"No method is shown to be better than {name}, which has the best mean."
    second = next(key for key in ("federated", *pairs) if key in pairs)
    pair = pairs[second]
    difference = difference_in_words(pair.difference, metric, "+")
    return (
        f"Use {name} ({needs}): {metric.name} {metric.in_words(means[best])}, {difference} against "
        f"{methods[second].words}; {counted(pair.better, 'client')} better, {pair.worse} worse."
    )


def simplest(means: Mapping[str, float], pairs: Mapping[str, Paired], metric: Metric) -> str:
    """The first method that the best one does not beat, with no worse mean than any before it."""
    beaten = {key for key, pair in pairs.items() if pair.verdict == "worth it"}
    values = list(means.values())
    leading = [key for i, key in enumerate(means) if metric.best(values[: i + 1]) == values[i]]
    return next(key for key in leading if key not in beaten)


def examples_needed(pair: Paired) -> str:
    """How many held-out examples would show a difference as large as the measured one.

    The test finds a difference d of n examples with a standard error of s with a power of 80 % if
    d is 2.8 s (1.96 + 0.84), and s falls with √n. Empty if nothing can be said.

    >>> margin = student(7) * 2.0  # a standard error of 2
    >>> examples_needed(Paired(Metric(), 4.0, margin, 5, 3, 8, 50.0))
    'About 98 held-out examples would tell, 2 times the 50 of these clients.'
    """
    if pair.margin is None or not pair.margin or not pair.difference:
        return ""
    error = pair.margin / student(pair.clients - 1)
    times = ((NORMAL + POWER) * error / pair.difference) ** 2
    if times > MOST_TIMES:
        return (
            f"If there is a difference, it is small: {pair.held_out:g} examples show those of "
            + (f"{difference_in_words(pair.margin, pair.metric)} or more.")
        )
    needed = float(f"{times * pair.held_out:.2g}")
    return (
        f"About {needed:,.0f} held-out examples would tell, {max(times, 1.1):.2g} times the "
        f"{pair.held_out:g} of these clients."
    )


def in_letters(number: int) -> str:
    """A small number as a word.

    >>> in_letters(4), in_letters(40)
    ('four', '40')
    """
    return LETTERS[number] if number < len(LETTERS) else str(number)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
