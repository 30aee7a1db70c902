"""`cflower explain`: why each cluster was split or not, and the effect of other thresholds.

For other thresholds the norm criterion is applied again to what was recorded. Only the first
verdict that differs from the recorded run is certain: from there on it would go another way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from cflower.algorithm.bipartition import bipartition
from cflower.algorithm.criteria import Outcome
from cflower.algorithm.norm_criterion import NormCriterion
from cflower.errors import ConfigError, RunFolderError
from cflower.ordering import counted, listed
from cflower.runs.events import events
from cflower.runs.findings import finding, personal_steps
from cflower.runs.record import RunRecord
from cflower.runs.records import Line
from cflower.settings import key_of

ASKED = ("eps1", "eps2", "gamma-max", "linkage", "min-cluster-size")
"""Keys with an effect that can be computed without training."""
MOST_ARRIVALS = 5
ROUND = attrgetter("server_round")
LIMITS = (
    "Each answer is valid up to the first split that differs from those of the run: a new run "
    "would take another course from there."
)


class Explanation(NamedTuple):
    """The output of `cflower explain`."""

    finding: str
    clusters: dict[str, str]
    """A paragraph on each cluster."""
    events: Sequence[str] = ()
    """A sentence on each event other than a split: clients that came or moved, new clusters."""
    asked: str = ""
    """The question about other thresholds, if there is one."""

    def __str__(self) -> str:
        asked, limits = ([self.asked], [LIMITS]) if self.asked else ([], [])
        happened = ["\n".join(self.events)] if self.events else []
        return "\n\n".join([self.finding, *asked, *happened, *self.clusters.values(), *limits])


def explanation(run: RunRecord, asked: Mapping[str, Any] | None = None) -> Explanation:
    """Why each cluster was split or not, or would be with valid other values of `ASKED`."""
    if not run.lines:
        raise RunFolderError(f"The run {run.name} has finished no round yet.")
    if not asked:
        happened = [f"Round {event.round}: {event.sentence}." for event in events(run)]
        stories = {name: story(run, name) for name in run.by_cluster}
        return Explanation(finding(run.summary), stories, happened)
    if unknown := sorted(asked.keys() - ASKED):
        raise ConfigError(
            f"{unknown[0]!r} needs a new run: only {', '.join(ASKED)} can be asked about without "
            "one."
        )
    names = {key_of(spec): spec.name for spec in fields(NormCriterion)}
    criterion = {**run.criterion, **asked}
    given = NormCriterion(**{names[key]: criterion[key] for key in names.keys() & criterion.keys()})
    values = ", ".join(f"{key} = {value}" for key, value in asked.items())
    answers = {name: what_if(run, name, given) for name in run.by_cluster}
    question = f"What if the norm criterion had decided, with {values}?"
    return Explanation(finding(run.summary), answers, asked=question)


def story(run: RunRecord, cluster: str) -> str:
    """The paragraph of one cluster: what became of it, and its decisions."""
    lines = run.by_cluster[cluster]
    last, fate = lines[-1], "was not split"
    if cluster not in run.clusters:
        fate = "was joined with its sibling clusters again"
    elif last.decision == Outcome.SPLIT:
        *others, child = last.children
        fate = f"split in round {last.round} into {', '.join(others)} and {child}"
    size = counted(len(last.members), "client")
    sentences = [f"Cluster {cluster} ({size}, {span(lines)}): {fate}.", *arrivals(run, cluster)]
    judged = [[one] for one, _ in run.judgements if one.cluster == cluster and one not in lines]
    for alike in [list(group) for _, group in groupby(lines, attrgetter("decision"))] + judged:
        sentences.append(f"{span(alike)}, {alike[0].decision}: {alike[-1].reason}")
    if step := personal_steps(run.summary).get(cluster):
        sentences.append(f"after the last round, {step}")
    return "\n  ".join(sentences)


def arrivals(run: RunRecord, cluster: str) -> Iterator[str]:
    """A sentence for each round in which Algorithm 4 placed clients in a cluster, with a reason."""
    came = [one for line in run.lines for one in line.placed if one.target == cluster]
    born = run.born(cluster) if cluster in run.clusters else None
    for server_round, some in groupby(sorted(came, key=ROUND), ROUND):
        first, *others = some
        clients = listed([first.client, *(one.client for one in others)], MOST_ARRIVALS)
        reason = f"{'of the first: ' if others else ''}{first.reason}"
        verb = "opened by" if server_round == born else "joined by"
        yield f"round {server_round}, {verb} {clients}: {reason}"


def span(lines: list[Line]) -> str:
    """The rounds of some lines in words.

    >>> def line(number):
    ...     return Line.model_construct(round=number)
    >>> span([line(1), line(6)]), span([line(7)])
    ('rounds 1 to 6', 'round 7')
    """
    first, last = lines[0].round, lines[-1].round
    return f"rounds {first} to {last}" if last > first else f"round {last}"


def what_if(run: RunRecord, cluster: str, given: NormCriterion) -> str:
    """One sentence: when these thresholds would have split a cluster, and when it did."""
    last = run.by_cluster[cluster][-1]
    was, unknown = "in the run: not split", ""
    if last.decision == Outcome.SPLIT:
        was = f"in the run: round {last.round}"
        unknown = f"; later rounds than {last.round} are not known"
    for line in run.by_cluster[cluster]:
        outcome, reason = rejudged(line, given, run)
        if outcome in (Outcome.SPLIT, None):
            could = f"{'would' if outcome else 'might'} have split in round {line.round}"
            return f"Cluster {cluster} ({was}): {could}: {reason}."
    return f"Cluster {cluster}: would not have split ({was}): {reason}{unknown}."


def rejudged(line: Line, rule: NormCriterion, run: RunRecord) -> tuple[Outcome | None, str]:
    """The outcome of eqs. 32, 33 and 39 on a recorded round, by this rule, and its reason.

    None where the norms allow a split but the similarities were not recorded, or are of another
    kind.
    """
    if line.decision == Outcome.TOO_FEW_HEARD:
        return Outcome.TOO_FEW_HEARD, line.reason
    members = len(line.members)
    outcome, reason = rule.by_norms(line.mean_norm, line.max_norm, members, members)
    if outcome is not Outcome.SPLIT:
        return outcome, reason
    matrix = run.matrix(line) if run.criterion["name"] == "norms" else None
    if not matrix:
        return None, f"{reason}; the similarities of this round were not recorded"
    return rule.by_sides(bipartition(matrix.values, rule.linkage)) or (outcome, reason)
