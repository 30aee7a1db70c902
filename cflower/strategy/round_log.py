"""What the Strategy writes into Flower's log about a round and about the end of a run."""

from collections.abc import Iterable, Mapping
from logging import INFO, WARNING

from flwr.supercore import log

from cflower.algorithm.criteria import Decision
from cflower.algorithm.state import CFLState, Move, Personal
from cflower.algorithm.tree import ParameterTree
from cflower.changes.personal import PersonalStep
from cflower.messages.exchange import PROGRESS
from cflower.ordering import counted, listed
from cflower.strategy.reports import FinalReport

PERSONAL_STEP = (
    "Personal step: each client trains the model of its cluster further on its own data, up to %s. "
    "Then the members of a cluster judge whether models of their own serve them better."
)
PARTED = (
    "From now on cluster %s has all layers for itself: it moved the shared ones against the other "
    "clusters."
)
UNABLE = (
    "Client(s) %s cannot evaluate several models: their figures are those of their own cluster's "
    "model, not of selection = %r."
)


def log_decisions(decisions: Iterable[Decision]) -> None:
    for decision in decisions:
        log(INFO, "\tcluster %s, %s: %s", decision.cluster, decision.outcome, decision.reason)


def log_places(state: CFLState, moves: Iterable[Move]) -> None:
    for move in moves:
        log(INFO, "Client %s moves from %s to %s: %s", *move[1:])
    for client, placement in state.placed.items():
        cluster = state.tree.training_cluster(client).name
        log(INFO, "Client %s is placed in %s: %s", client, cluster, placement)


def log_parted(before: ParameterTree, after: ParameterTree) -> None:
    for name, cluster in before.clusters.items():
        if not cluster.own_body and after.clusters[name].own_body:
            log(INFO, PARTED, name)


def log_alone(step: PersonalStep) -> None:
    log(INFO, PERSONAL_STEP, counted(step.trainings, "time"), extra=PROGRESS)


def log_steps(steps: Mapping[str, Personal]) -> None:
    for leaf, step in steps.items():
        result = outcome_of(step.accepted, step.evaluations)
        log(INFO, "Cluster %s, personal step %s: %s", leaf, result, step.reason, extra=PROGRESS)


def outcome_of(accepted: bool, evaluations: int) -> str:
    """The outcome of a personal step in words: without an evaluation nothing is refused.

    >>> outcome_of(True, 9), outcome_of(False, 9), outcome_of(False, 0)
    ('accepted', 'refused', 'not judged')
    """
    return ("accepted" if accepted else "refused") if evaluations else "not judged"


def log_unable(report: FinalReport) -> None:
    unable = [client for client, result in report.clients.items() if result.best is None]
    if unable and report.selection != "leaf":
        log(WARNING, UNABLE, listed(unable), report.selection)
