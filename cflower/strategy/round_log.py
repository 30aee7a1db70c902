"""What the Strategy writes into Flower's log about a round and about the end of a run."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from logging import INFO, WARNING

from flwr.supercore import log

from cflower.algorithm.constants import MOST
from cflower.algorithm.criteria import Decision
from cflower.algorithm.state import CFLState, Move, Personal
from cflower.algorithm.tree import ParameterTree
from cflower.changes.personal import PersonalStep
from cflower.messages.exchange import PROGRESS
from cflower.messages.grouped_log import GroupedLog
from cflower.messages.metrics import ClientMetrics
from cflower.ordering import counted, in_order, listed
from cflower.robust.robust_mean import limited
from cflower.strategy.reports import FinalReport

PERSONAL_STEP = (
    "Personal step: each client trains the model of its cluster further on its own data, %s. "
    "The members of a cluster judge whether models of their own serve them better."
)
PARTED = (
    "From now on cluster %s has all layers for itself: it moved the shared ones against the other "
    "clusters."
)
UNABLE = (
    "Client(s) %s cannot evaluate several models: their figures are those of their own cluster's "
    "model, not of selection = %r."
)
REPORTED = 0.5
"""A client that counts for less than this fraction of its claim is logged."""
FAR_LESS, LASTING = 0.03, 10
"""Less than this fraction, or so many rounds in a row, is worth a warning. An honest group of its
own counts for 0.04 of its claim or more, and is split off within seven rounds (measured)."""
LOWERED = (
    "Only {cause} of the weight of {clients} counts in the mean update: the update or the number "
    "of examples is more than %g times as large as usual in the cluster. Once or twice is normal, "
    "also for a group that has no model of its own yet. If it lasts and these clients are honest, "
    "raise max-influence."
)
HEAVY = (
    "In the means of the clients' metrics, %s count for at most %g usual clients: their numbers of "
    "examples are far above the median."
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
    often = "once" if step.trainings == 1 else counted(step.trainings, "time")
    if more := step.most - step.trainings:
        often += f", and up to {counted(more, 'time')} more where that promises a gain"
    log(INFO, PERSONAL_STEP, often, extra=PROGRESS)


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


class WeightLog:
    """Warns of clients with a lowered weight in the mean update."""

    def __init__(self) -> None:
        self._lowered_for: Counter[str] = Counter()
        """Rounds in a row."""
        self._lasting_logged = False
        self._grouped = GroupedLog()

    def lowered(self, shares: Mapping[str, float], clients: Collection[str], most: float) -> None:
        """Warn of clients that count for far less than their claim, or for less for long.

        ``shares`` are the fractions of their weight that clients have kept in a round, ``clients``
        all that took part. Of those with less for long only the first ones are named: the sentence
        explains the others.
        """
        less = {client for client, share in shares.items() if share < REPORTED}
        for client in clients:
            self._lowered_for[client] = self._lowered_for[client] + 1 if client in less else 0
        odd = {client for client in less if shares[client] < FAR_LESS}
        if not self._lasting_logged:
            odd |= {client for client in less if self._lowered_for[client] >= LASTING}
        for client in odd:
            self._grouped.note(WARNING, LOWERED % most, client, f"{shares[client]:.2g}")
        self._lasting_logged = self._lasting_logged or bool(odd)
        self._grouped.flush()


def log_limited_examples(measured: Mapping[str, ClientMetrics]) -> None:
    """Log the clients with numbers of examples that are limited in a mean of metrics."""
    claimed = [one.num_examples for one in measured.values()]
    limits = zip(measured, claimed, limited(claimed), strict=True)
    if heavy := [name for name, examples, limit in limits if limit < REPORTED * examples]:
        log(WARNING, HEAVY, listed(in_order(heavy)), MOST)
