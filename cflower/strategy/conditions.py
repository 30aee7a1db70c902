"""What a run may do besides the rounds themselves, by its grid, its clients and its model."""

from dataclasses import dataclass
from functools import cached_property
from logging import INFO, WARNING
from math import inf

from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.algorithm.aggregation import Average
from cflower.algorithm.optimizers import ADAPTIVE
from cflower.algorithm.round import CFL
from cflower.algorithm.state import ADAPT, CFLState
from cflower.changes import changes_of
from cflower.changes.personal import EVALUATIONS, MOST_TRAININGS, PersonalStep, leaves_of
from cflower.messages.client_names import ADAPTS, COMMITMENT, EVALUATE, adds_noise, has_function
from cflower.messages.layout import UNTRAINED, Layout
from cflower.messages.roll_call import RollCall
from cflower.strategy.settings import Settings

MODELS_KEPT, MOST_GIGABYTES = 3, 8.0
"""Models of each client that a personal step holds at most, and the memory that they may take."""
STATE_BUDGET = 2 * 10**9
"""Bytes of memory for the kept updates of all clients."""
COPIES = 4
"""Copies of each client's update in single precision: the last known one, the average, the next
average while it is computed, and the one on the edge of the client's cluster."""
LEAST_LENGTH = 256
"""Shortest projection: the error of a cosine in a shorter one would hide most groups."""
FOR_QUESTIONS, BEYOND_ROUNDS = 0.15, 0.3
"""What questions, and these and the personal step together, may add to the models that FedAvg's
rounds and its final evaluation would send, and the latter to the trainings."""
ALL_TRAIN_AFTER, LEAST_ROUNDS = 0.6, 6
"""Examples that decide also train after this share of the rounds and so many, while nothing is
asked. Before, most groups are still to be found."""
NOT_ALONE = (
    "Another `start` than that of ClusteredFL runs the rounds, of a wrapper or of the app: without "
    "questions about splits, moves and the final evaluation, whose table is empty. An app's own "
    "loop is rarely needed: see evaluate_fn, observers and configure_train (docs/guide/own-app.md)."
)
BY_NUMBER = (
    "The model's arrays have numbers in place of names. If some hold statistics of normalisation "
    'layers, name these, such as untrained=["2", "3"]: an adaptive server optimizer can make a '
    "variance negative. If none do, untrained=[] says so."
)


@dataclass(frozen=True)
class Conditions:
    """The circumstances of a run that decide what it may do."""

    settings: Settings
    grid: Grid
    roll_call: RollCall
    layout: Layout
    alone: bool
    """Whether `ClusteredFL.start` runs the rounds, no wrapper and no loop of the app's own."""

    @cached_property
    def evaluates(self) -> bool:
        return has_function(self.grid, EVALUATE, if_unknown=True)

    @cached_property
    def private(self) -> bool:
        """Whether a further training of a client would cost differential privacy.

        A wrapper accounts for one model a client and round, and so does noise on the clients.
        """
        return not self.alone or adds_noise(self.grid)

    def algorithm(self, length: int, num_rounds: int) -> CFL:
        """The algorithm of the run, with projections of this length.

        With ``private`` splits are final, and members do not move. Without an evaluate function in
        the ClientApp, splits are final too.
        """
        settings, layout, rules = self.settings, self.layout, self.settings.rules
        self.log_limits(num_rounds)
        trial_rounds = rules.trial_rounds if self.evaluates and not self.private else 0
        moving = rules.moving and not self.private and not settings.isolated
        # Where most clients permute their weights, no array is what its shape shows.
        permute = [COMMITMENT in facts for facts in self.roll_call.facts.values()]
        projection = layout.projection(
            length,
            settings.seed,
            settings.similarity_layers,
            output=2 * sum(permute) <= len(permute),
        )
        # The mean of a common body is that of the leaves' means, which only eq. 2 permits.
        has_common_body = trial_rounds and isinstance(rules.aggregator, Average)
        output = projection.output if has_common_body else None
        return CFL(
            rules.criterion,
            projection,
            rules.optimizer,
            settings.weighting,
            layout.as_sent,
            changes_of(trial_rounds, moving=moving),
            self.affordable_models(FOR_QUESTIONS, num_rounds),
            self.all_train_after(num_rounds),
            num_rounds,
            body=layout.num_trained - output.size if output else 0,
            aggregator=rules.aggregator,
            middle=bool(settings.max_influence),
            metric=settings.leading,
        )

    def all_train_after(self, num_rounds: int) -> float:
        """The last round in which no example that decides trains in any case."""
        if self.private or self.settings.selection != "leaf":
            return inf  # noise is for a fixed set; a client's model is chosen by them at the end
        return max(round(ALL_TRAIN_AFTER * num_rounds), LEAST_ROUNDS)

    def log_limits(self, num_rounds: int) -> None:
        """Log what the settings ask for and the run will not have, and what may go wrong."""
        settings, rules = self.settings, self.settings.rules
        if not self.alone:
            log(INFO, NOT_ALONE)
        if rules.trial_rounds and not self.evaluates:
            log(INFO, "The ClientApp has no evaluate function: splits are final.")
        if rules.personal and (obstacle := self.personal_obstacle(num_rounds)):
            log(INFO, "There will be no personal step: %s.", obstacle)
        adaptive = getattr(rules.optimizer, "rule", None) in ADAPTIVE
        if adaptive and self.layout.by_number and tuple(settings.untrained) == UNTRAINED:
            log(WARNING, BY_NUMBER)

    def personal_obstacle(self, num_rounds: int, asked: int = 0) -> str:
        """Why a run of so many rounds has no personal step; empty if it can have one.

        ``asked`` are the models that questions have taken so far.
        """
        settings = self.settings
        if self.private:
            return "every further training of a client would cost differential privacy"
        if not self.evaluates:
            return "the ClientApp has no evaluate function"
        if settings.selection != "leaf":
            return f"selection = {settings.selection!r} chooses among the clusters' models"
        if self.personal_trainings(num_rounds, asked)[0] < 1:
            rounds = settings.fraction_train * num_rounds
            return f"a client trains in {rounds:g} rounds on average, too few for one"
        layout, clients = self.layout, self.roll_call.connected
        needed = MODELS_KEPT * clients * (layout.num_trained * layout.dtype.itemsize) / 1e9
        if needed > MOST_GIGABYTES:
            return f"the models of {clients} clients take {needed:.0f} GB at once"
        return ""

    def personal_step(self, state: CFLState, num_rounds: int) -> PersonalStep | None:
        """The personal step after so many rounds; None without one."""
        leaves, so_far = leaves_of(state), (num_rounds, state.asked)
        if not self.settings.rules.personal or self.personal_obstacle(*so_far) or not leaves:
            return None
        trainings, first, at_once = self.personal_trainings(*so_far)
        return PersonalStep(num_rounds, leaves, trainings, ADAPT if at_once else "train", first)

    def personal_trainings(self, num_rounds: int, asked: int) -> tuple[int, int, bool]:
        """A client's trainings in a personal step, those of the first attempt, and whether at once.

        They are at most `BEYOND_ROUNDS` of those of the run, and the models that they take are what
        questions have left of it. The first attempt has one training if a second is affordable. In
        a short run one attempt may be what serves the clients best, so in one message it always is.
        """
        left = self.affordable_models(BEYOND_ROUNDS, num_rounds) - asked
        left /= self.roll_call.connected
        facts = self.roll_call.facts.values()
        at_once = bool(facts) and all(known.get(ADAPTS) for known in facts)
        most = min(MOST_TRAININGS, BEYOND_ROUNDS * num_rounds * self.settings.fraction_train)
        once, twice = (left - EVALUATIONS) / 2, left / 2 - EVALUATIONS
        if at_once:  # an attempt takes two models
            once, twice = inf, inf if left >= 4 else 0
        in_one, in_two = (int(min(most, affordable) + 1e-9) for affordable in (once, twice))
        return (in_two, 1, at_once) if in_two > 1 else (in_one, in_one, at_once)

    def affordable_models(self, share: float, num_rounds: int) -> float:
        """The models that a run may send for such a share beyond those that FedAvg would send.

        With FedAvg a client gets and sends a model in every round in which it trains, and gets one
        to evaluate in others and at the end. After a split it gets the root's model then, too.
        """
        clients = self.roll_call.connected
        by_round = 2 * self.settings.fraction_train + self.settings.fraction_evaluate
        return max(2, share * (by_round * num_rounds + 1) - 1) * clients


def affordable_length(length: int, clients: int) -> int:
    """The length of projections with which so many clients' updates fit in `STATE_BUDGET`.

    At most ``length``, else a power of two, so that a few clients more or less change it seldom: a
    resumed run must have the same length. The error of one cosine grows to ``sqrt(2 / k)``; that of
    a mean over many pairs, which decisions rest on, is smaller, by the root of their number where
    errors are independent. 0, which keeps updates whole, stays 0.

    >>> [affordable_length(16_384, clients) for clients in (100, 10_000, 100_000, 10**6)]
    [16384, 8192, 1024, 256]
    """
    affordable = max(LEAST_LENGTH, STATE_BUDGET // (4 * COPIES * max(1, clients)))
    return min(length, 1 << affordable.bit_length() - 1)
