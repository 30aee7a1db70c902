"""When other thresholds would have split: the norm criterion asked again of what was recorded.

Only the first answer that differs from the recorded run is certain: from there on the run would
have gone another way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cflower.algorithm.bipartition import Linkage, bipartition, largest_safe_gamma
from cflower.algorithm.criteria import NormCriterion, Outcome
from cflower.runs.record import Line, RecordedMatrix, RunRecord


@dataclass(frozen=True)
class Thresholds:
    """The keys of the run config that decide about a split; see `NormCriterion`."""

    eps1: float
    eps2: float
    gamma_max: float
    linkage: Linkage
    min_cluster_size: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Thresholds":
        """Those under their kebab-case keys; of what is missing, `NormCriterion`'s defaults."""
        rule = NormCriterion()
        return cls(
            config.get("eps1", rule.eps1),
            config.get("eps2", rule.eps2),
            config.get("gamma-max", rule.gamma_max),
            config.get("linkage", rule.linkage),
            config.get("min-cluster-size", rule.min_cluster_size),
        )

    def used_by(self, line: Line) -> "Thresholds":
        """With the ε1 and ε2 that a decision says it used, if it says so."""
        figures = line.get("figures") or {}
        return replace(self, **{key: figures[key] for key in ("eps1", "eps2") if key in figures})


class Answer(NamedTuple):
    """What a criterion would have said."""

    outcome: Outcome | None
    """None where the norms would have allowed a split but the sides were not recorded."""
    reason: str


def asked_again(line: Line, given: Thresholds, matrix: RecordedMatrix | None) -> Answer:
    """The verdict of eqs. 32, 33 and 39 on a recorded round, with these thresholds.

    Parameters
    ----------
    line : mapping
        Of ``rounds.jsonl``.
    given : Thresholds
    matrix : RecordedMatrix or None
        Of this cluster in this round; it exists only where the norms allowed a split.
    """
    mean, largest = line["mean_norm"], line["max_norm"]
    least = max(2, 2 * given.min_cluster_size)
    if len(line["members"]) < least:
        return Answer(Outcome.TOO_SMALL, f"a split needs at least {least} members")
    if line["decision"] == Outcome.TOO_FEW_HEARD:
        return Answer(Outcome.TOO_FEW_HEARD, line["reason"])
    if mean >= given.eps1:
        return Answer(Outcome.MOVING, f"mean norm {mean:.3g} >= eps1 {given.eps1:g}")
    if largest <= given.eps2:
        return Answer(Outcome.CONTENT, f"largest norm {largest:.3g} <= eps2 {given.eps2:g}")
    norms = f"mean norm {mean:.3g} < eps1 {given.eps1:g}, "
    norms += f"largest norm {largest:.3g} > eps2 {given.eps2:g}"
    if matrix is None:
        return Answer(None, f"{norms}; the sides were not recorded in this round")
    sides = bipartition(matrix.values, given.linkage)
    gamma = largest_safe_gamma(sides.alpha_cross)
    apart = f"alpha_cross {sides.alpha_cross:.3g} allows gamma < {gamma:.3g}"
    if given.gamma_max >= gamma:
        return Answer(Outcome.NOT_APART, f"{apart}, and gamma-max is {given.gamma_max:g}")
    sizes = len(sides.first), len(sides.second)
    if min(sizes) < given.min_cluster_size:
        return Answer(Outcome.TOO_SMALL, f"sides of {sizes[0]} and {sizes[1]}")
    return Answer(Outcome.SPLIT, f"{norms}; sides of {sizes[0]} and {sizes[1]}, {apart}")


def matrix_for(run: RunRecord, line: Line) -> RecordedMatrix | None:
    """The matrix that eq. 39 asks for; other criteria record similarities of another kind."""
    return run.matrix(line) if run.criterion["name"] == "norms" else None


class FirstSplit(NamedTuple):
    """When a cluster would first have split."""

    server_round: int
    answer: Answer


def first_splits(run: RunRecord, cluster: str, given: Thresholds) -> list[FirstSplit]:
    """The first round that would have split a cluster, after the first that might have, if any."""
    found: list[FirstSplit] = []
    for line in run.by_cluster.get(cluster, []):
        answer = asked_again(line, given, matrix_for(run, line))
        if answer.outcome is Outcome.SPLIT:
            return [*found, FirstSplit(line["round"], answer)]
        if answer.outcome is None and not found:
            found.append(FirstSplit(line["round"], answer))
    return found


class Margin(NamedTuple):
    """How far one threshold alone was from letting the norms split a cluster."""

    key: str
    value: float
    """A split needs ``eps1`` above it, or ``eps2`` below it."""
    server_round: int
    recorded: bool
    """Whether the sides of that round are known."""


def margins(run: RunRecord, cluster: str, given: Thresholds) -> list[Margin]:
    """The smallest change of ε1 alone, and of ε2 alone, that passes the norms in another round."""
    could = [
        line
        for line in run.by_cluster.get(cluster, [])
        if asked_again(line, replace(given, eps1=float("inf"), eps2=-1.0), None).outcome is None
    ]
    found = []
    if moving := [
        ln for ln in could if ln["max_norm"] > given.eps2 and ln["mean_norm"] >= given.eps1
    ]:
        line = min(moving, key=lambda line: float(line["mean_norm"]))
        found.append(Margin("eps1", line["mean_norm"], line["round"], run.has_matrix(line)))
    if content := [
        ln for ln in could if ln["max_norm"] <= given.eps2 and ln["mean_norm"] < given.eps1
    ]:
        line = max(content, key=lambda line: float(line["max_norm"]))
        found.append(Margin("eps2", line["max_norm"], line["round"], run.has_matrix(line)))
    return found


def room(line: Line) -> str:
    """What the thresholds had to be for a split that happened."""
    gamma = largest_safe_gamma(line["alpha_cross"])
    return (
        f"It needed eps1 above {line['mean_norm']:.4g}, eps2 below {line['max_norm']:.4g} "
        f"and gamma-max below {gamma:.4g}."
    )
