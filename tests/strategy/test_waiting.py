"""How long rounds of a real federation wait for a client that is slow on purpose, or always."""

from logging import WARNING

import pytest

from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid
from tests.strategy.quadratics import Quadratics, clusters_of, initial_arrays, strategy_of

GROUPS, TIMEOUT, ROUNDS = (0, 1) * 4, 600.0, 10
SLOW = 7


class Clock:
    """The time of the exchanges, which only their pauses advance."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class SlowGrid(InlineGrid):
    """Processes whose replies take a while; those of one client what ``delay`` says.

    ``delay`` is in timeouts, by the kind of message and the round.
    """

    def __init__(self, clients, delay, clock):
        super().__init__(clients.app(), len(clients.groups), {})
        self._delay, self._clock, self._due = delay, clock, {}

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            kind, server_round = message.metadata.message_type, message.metadata.group_id
            node, delay = message.metadata.dst_node_id - FIRST_NODE_ID, USUAL
            if server_round == "roll-call":
                delay = 0.0
            elif node == SLOW:
                delay = self._delay(kind.partition(".")[0], int(server_round))
            sent = super().push_messages([message])
            self._due |= dict.fromkeys(sent, self._clock.now + delay * TIMEOUT)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        replies = []
        due = [one for one in message_ids if self._due[one] <= self._clock.now]
        while due and (more := super().pull_messages(due)):
            replies += more
        return replies


USUAL = 0.02
DELAYS = {
    "just in time": lambda kind, server_round: 0.95,
    "never": lambda kind, server_round: 99,
    "never in evaluations": lambda kind, server_round: 99 if kind == "evaluate" else USUAL,
    "two rounds of three": lambda kind, server_round: 99 if server_round % 3 else USUAL,
}


def timeouts_of(delay, monkeypatch, rounds=ROUNDS, **settings):
    """The strategy after a run, and how many timeouts it took."""
    clock = Clock()
    monkeypatch.setattr("flwr.superlink.grid.HttpGrid", SlowGrid)
    monkeypatch.setattr("cflower.messages.exchange.time", clock)
    grid, strategy = SlowGrid(Quadratics(GROUPS), delay, clock), strategy_of(**settings)
    strategy.start(grid, initial_arrays(), rounds, timeout=TIMEOUT)
    return strategy, clock.now / TIMEOUT


@pytest.mark.slow
@pytest.mark.parametrize("kind", DELAYS)
def test_one_client_costs_ten_rounds_at_most_three_timeouts(kind, monkeypatch, caplog):
    _, usual = timeouts_of(lambda kind, server_round: USUAL, monkeypatch)
    strategy, timeouts = timeouts_of(DELAYS[kind], monkeypatch)
    assert timeouts < usual + 3
    (said,) = [r for r in caplog.records if "kept rounds waiting" in r.getMessage()]
    assert said.levelno == WARNING and f"Client(s) partition-{SLOW} kept" in said.getMessage()
    found = {group - {f"partition-{SLOW}"} for group in clusters_of(strategy)}
    assert {frozenset(f"partition-{i}" for i in (0, 2, 4, 6))} <= found


@pytest.mark.slow
def test_what_comes_after_the_round_still_counts(monkeypatch):
    strategy, _ = timeouts_of(DELAYS["just in time"], monkeypatch, rounds=80)
    assert strategy.state.known[f"partition-{SLOW}"].server_round > 20
    assert not strategy.failures.excluded


def test_a_client_that_is_slow_now_and_then_is_waited_for(monkeypatch, caplog):
    def delay(kind, server_round):
        return 0.9 if (kind, server_round) == ("train", 3) else 2 * USUAL

    strategy, _ = timeouts_of(delay, monkeypatch)
    assert not [r for r in caplog.records if "kept rounds waiting" in r.getMessage()]
    assert strategy.state.known[f"partition-{SLOW}"].server_round == ROUNDS


def test_a_client_that_is_in_time_again_is_waited_for_again(monkeypatch):
    def delay(kind, server_round):
        return 0.95 if server_round <= 5 else USUAL

    strategy, _ = timeouts_of(delay, monkeypatch, rounds=60)
    assert strategy.state.known[f"partition-{SLOW}"].server_round == 60
    assert not [*strategy.failures.silent]
