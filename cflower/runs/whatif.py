"""When other thresholds would have split: the norm criterion asked again of what was recorded.

Only the first verdict that differs from the recorded run is certain: from there on the run would
have gone another way.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from cflower.algorithm.bipartition import bipartition, largest_safe_gamma
from cflower.algorithm.criteria import NormCriterion, NormVerdict, Outcome
from cflower.runs.record import Line, RecordedMatrix, RunRecord


def rule_of(settings: Mapping[str, Any]) -> NormCriterion:
    """The criterion with these settings; `NormCriterion`'s defaults for those that are missing."""
    keys = {key.replace("-", "_"): value for key, value in settings.items()}
    names = {spec.name for spec in fields(NormCriterion)}
    return NormCriterion(**{key: value for key, value in keys.items() if key in names})


def rejudged(line: Line, rule: NormCriterion, matrix: RecordedMatrix | None) -> NormVerdict:
    """The verdict of eqs. 32, 33 and 39 on a recorded round, by this rule.

    Parameters
    ----------
    line : mapping
        Of ``rounds.jsonl``.
    rule : NormCriterion
    matrix : RecordedMatrix or None
        Of this cluster in this round; it exists only where the norms allowed a split.
    """
    if line["decision"] == Outcome.TOO_FEW_HEARD:
        return NormVerdict(Outcome.TOO_FEW_HEARD, line["reason"])
    members = len(line["members"])
    return rule.judge(
        line["mean_norm"],
        line["max_norm"],
        members,
        lambda: None if matrix is None else bipartition(matrix.values, rule.linkage),
    )


def matrix_for(run: RunRecord, line: Line) -> RecordedMatrix | None:
    """The matrix that eq. 39 asks for; other criteria record similarities of another kind."""
    return run.matrix(line) if run.criterion["name"] == "norms" else None


class FirstSplit(NamedTuple):
    """When a cluster would first have split."""

    server_round: int
    verdict: NormVerdict


def first_splits(run: RunRecord, cluster: str, rule: NormCriterion) -> list[FirstSplit]:
    """The first round that would have split a cluster, after the first that might have, if any."""
    found: list[FirstSplit] = []
    for line in run.by_cluster.get(cluster, []):
        verdict = rejudged(line, rule, matrix_for(run, line))
        if verdict.outcome is Outcome.SPLIT:
            return [*found, FirstSplit(line["round"], verdict)]
        if verdict.outcome is None and not found:
            found.append(FirstSplit(line["round"], verdict))
    return found


class Margin(NamedTuple):
    """How far one threshold alone was from letting the norms split a cluster."""

    key: str
    value: float
    """A split needs ``eps1`` above it, or ``eps2`` below it."""
    server_round: int
    recorded: bool
    """Whether the sides of that round are known."""


def margins(run: RunRecord, cluster: str, rule: NormCriterion) -> list[Margin]:
    """The smallest change of ε1 alone, and of ε2 alone, that passes the norms in another round."""
    could = [
        line
        for line in run.by_cluster.get(cluster, [])
        if rejudged(line, replace(rule, eps1=float("inf"), eps2=-1.0), None).outcome is None
    ]
    found = []
    if moving := [
        ln for ln in could if ln["max_norm"] > rule.eps2 and ln["mean_norm"] >= rule.eps1
    ]:
        line = min(moving, key=lambda line: float(line["mean_norm"]))
        found.append(Margin("eps1", line["mean_norm"], line["round"], run.has_matrix(line)))
    if content := [
        ln for ln in could if ln["max_norm"] <= rule.eps2 and ln["mean_norm"] < rule.eps1
    ]:
        line = max(content, key=lambda line: float(line["max_norm"]))
        found.append(Margin("eps2", line["max_norm"], line["round"], run.has_matrix(line)))
    return found


def split_bounds(line: Line) -> str:
    """What the thresholds had to be for a split that happened."""
    gamma = largest_safe_gamma(line["alpha_cross"])
    return (
        f"It needed eps1 above {line['mean_norm']:.4g}, eps2 below {line['max_norm']:.4g} "
        f"and gamma-max below {gamma:.4g}."
    )
