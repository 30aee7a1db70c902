"""Other thresholds for a finished run: the norm criterion applied again to what was recorded.

Only the first verdict that differs from the recorded run is certain: from there on the run would
have gone another way.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from operator import itemgetter
from typing import Any, NamedTuple

from cflower.algorithm.bipartition import bipartition, largest_safe_gamma
from cflower.algorithm.criteria import NormCriterion, NormVerdict, Outcome
from cflower.runs.record import Line, RecordedMatrix, RunRecord


def rule_of(settings: Mapping[str, Any]) -> NormCriterion:
    """The criterion with these settings; `NormCriterion`'s defaults for those that are missing."""
    names = {field.name.replace("_", "-"): field.name for field in fields(NormCriterion)}
    return NormCriterion(**{names[key]: settings[key] for key in names.keys() & settings.keys()})


def rejudged(line: Line, rule: NormCriterion, matrix: RecordedMatrix | None) -> NormVerdict:
    """The verdict of eqs. 32, 33 and 39 on a recorded round, by this rule.

    The matrix was recorded only where the norms of the run allowed a split.
    """
    if line["decision"] == Outcome.TOO_FEW_HEARD:
        return NormVerdict(Outcome.TOO_FEW_HEARD, line["reason"])
    return rule.judge(
        line["mean_norm"],
        line["max_norm"],
        len(line["members"]),
        lambda: bipartition(matrix.values, rule.linkage) if matrix else None,
    )


def matrix_for(run: RunRecord, line: Line) -> RecordedMatrix | None:
    """The matrix for eq. 39; other criteria record similarities of another kind."""
    return run.matrix(line) if run.criterion["name"] == "norms" else None


class FirstSplit(NamedTuple):
    """The round in which a cluster would first have split."""

    server_round: int
    verdict: NormVerdict


def first_splits(run: RunRecord, cluster: str, rule: NormCriterion) -> list[FirstSplit]:
    """The first round with a certain split, after the first one with a possible split, if any."""
    possible: list[FirstSplit] = []
    for line in run.by_cluster[cluster]:
        verdict = rejudged(line, rule, matrix_for(run, line))
        if verdict.outcome is Outcome.SPLIT:
            return [*possible[:1], FirstSplit(line["round"], verdict)]
        if verdict.outcome is None:
            possible.append(FirstSplit(line["round"], verdict))
    return possible[:1]


class Margin(NamedTuple):
    """The smallest change of one threshold with which the norms would allow a split."""

    key: str
    value: float
    """A split needs ``eps1`` above it, or ``eps2`` below it."""
    server_round: int
    recorded: bool
    """Whether the sides of that round are known."""


def margins(run: RunRecord, cluster: str, rule: NormCriterion) -> list[Margin]:
    """The smallest change of ε1 alone, and of ε2 alone, that passes the norms in another round."""
    relaxations = (
        ("eps1", "mean_norm", min, replace(rule, eps1=float("inf")), Outcome.MOVING),
        ("eps2", "max_norm", max, replace(rule, eps2=-1.0), Outcome.CONTENT),
    )
    smallest = []
    for key, norm, nearest, relaxed, refusal in relaxations:
        refused = []
        for line in run.by_cluster[cluster]:
            outcomes = rejudged(line, rule, None).outcome, rejudged(line, relaxed, None).outcome
            if outcomes == (refusal, None):
                refused.append(line)
        if refused:
            line = nearest(refused, key=itemgetter(norm))
            smallest.append(Margin(key, line[norm], line["round"], run.has_matrix(line)))
    return smallest


def split_bounds(line: Line) -> str:
    """The thresholds that a split needed."""
    gamma = largest_safe_gamma(line["alpha_cross"])
    return (
        f"It needed eps1 above {line['mean_norm']:.4g}, eps2 below {line['max_norm']:.4g} "
        f"and gamma-max below {gamma:.4g}."
    )
