"""Who is there: node ids come and go, clients have lasting names.

A node id is good for one run in simulation, and changes when an unauthenticated SuperNode
restarts. So every unknown node is asked once for its client's name and facts, if its ClientApp
knows the question; else its node id is its name.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.errors import FederationError
from cflower.messages.claims import facts_in, line, listed
from cflower.messages.client_names import FACTS, ROLL_CALL, functions_of
from cflower.messages.exchange import Exchange
from cflower.messages.replies import first_line
from cflower.ordering import in_order
from cflower.simulation.inline_grid import CLIENT_FAILED

TWIN = "another node already holds this name: give each SuperNode a client-id of its own"
MOST_TOLD = 12
"""Refusals told in an error."""
RETRY = 600.0
"""Seconds until a node that did not answer is asked again; each retry delays a round."""


class Refusal(NamedTuple):
    """A node that may not take part."""

    client: str
    reason: str
    facts: Mapping[str, Any]


@dataclass
class RollCall:
    """The clients of a run by name, and the node each is at now.

    Attributes
    ----------
    timeout : float
        Seconds to wait for nodes and for their answers.
    nodes : dict of str to int
        Node id by client name, of clients that are connected.
    facts : dict of str to dict
        What each client told of itself.
    refused : dict of int to Refusal
        Why a node may not take part, by node id; forgotten when the node leaves.
    check : callable
        From a client's facts to why it cannot take part; empty if it can.
    asks : bool or None
        Whether nodes are asked for their name and facts. None: if the run's ClientApp can answer,
        see `cflower.name_clients`.
    """

    timeout: float = 60.0
    nodes: dict[str, int] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[int, Refusal] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], str] = lambda facts: ""
    asks: bool | None = True
    _names: dict[int, str] = field(default_factory=dict)
    _silent_since: dict[int, float] = field(default_factory=dict)
    _unheard: dict[int, str] = field(default_factory=dict)
    """Why there is no answer of a node that is connected."""
    _registered: dict[int, str] = field(default_factory=dict)
    """The names that silent nodes are registered by at the SuperLink; empty without."""
    _remote: bool = False

    @property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients that are connected, in natural order."""
        return in_order(self.nodes)

    @property
    def announced(self) -> int:
        """How many clients a simulation has, as most of them tell; 0 if most tell nothing."""
        told = [*self.facts.values(), *(refusal.facts for refusal in self.refused.values())]
        counts = Counter(facts.get("num-partitions", 0) for facts in told)
        number, votes = counts.most_common(1)[0] if counts else (0, 0)
        return number if 2 * votes > len(told) else 0

    @property
    def simulated(self) -> bool:
        """Whether the nodes are those of a simulation, which are there from first to last."""
        return bool(self.announced) and not self._remote

    def name_of(self, node_id: int) -> str:
        """The client at a node; the node id itself for one that never answered."""
        return self._names.get(node_id, str(node_id))

    def gather(self, grid: Grid, at_least: int) -> tuple[str, ...]:
        """Wait until enough clients are there, and all that a simulation announces.

        Raises
        ------
        FederationError
            When there are too few after ``timeout`` seconds, or when more cannot come: all nodes
            that a simulation has are there.
        """
        deadline, before = time.monotonic() + self.timeout, -1
        while True:
            unanswered = self.update(grid)
            announced = self.announced
            there = len(self.nodes) + len(self.refused)
            # Nodes of which nobody says how many they are may still be coming in.
            settled, before = self.asks or there == before, there
            complete = not unanswered and there >= announced and settled
            late = time.monotonic() > deadline
            if (complete or late) and len(self.nodes) >= at_least:
                return self.clients
            # A simulation never grows, so there is nothing to wait for.
            if (complete and self.simulated) or late:
                raise FederationError(self._too_few(at_least, announced))
            time.sleep(0.1)

    def update(self, grid: Grid) -> int:
        """Ask the nodes that are not known yet; the number of those that did not answer."""
        # Loads databases for a second; a client never gets here, and starts anew for every message.
        from flwr.superlink.grid import HttpGrid

        self._remote = isinstance(grid, HttpGrid)
        if self.asks is None:
            self.asks = ROLL_CALL in (functions_of(grid) or ())
        live, now = set(grid.get_node_ids()), time.monotonic()
        self.nodes = {name: node for name, node in self.nodes.items() if node in live}
        for node, name in self._names.items():
            if node in live:
                self.nodes.setdefault(name, node)
        # Who comes back may have been put right meanwhile, so it is asked again.
        self.refused = {node: why for node, why in self.refused.items() if node in live}
        for node, refusal in list(self.refused.items()):
            if refusal.reason == TWIN and refusal.client not in self.nodes:
                del self.refused[node]  # the node that held its name is gone
                self._enter(node, refusal.facts)
        known = self._names.keys() | self.refused.keys()
        asked = sorted(n for n in live - known if now - self._silent_since.get(n, -RETRY) >= RETRY)
        problems: dict[str, list[str]] = {}
        before = dict(self._unheard)
        for node, facts in self._ask(grid, asked):
            if problem := self._enter(node, facts):
                problems.setdefault(problem, []).append(self.refused[node].client)
        for problem, names in problems.items():
            log(WARNING, "Client(s) %s cannot take part: %s", listed(in_order(names)), problem)
        known = self._names.keys() | self.refused.keys()
        self._unheard = {n: why for n, why in self._unheard.items() if n in live - known}
        if new := {n: why for n, why in self._unheard.items() if before.get(n) != why}:
            registered = {node.node_id: node.name for node in grid.get_nodes()}
            self._registered |= {node: line(registered.get(node) or "") for node in new}
            log(
                WARNING,
                "Connected, but not in the roll call: %s. The run goes on without; who was silent "
                "is asked again after %g s.",
                self._told_unheard(new),
                RETRY,
            )
        return sum(node not in known for node in asked)

    def _told_unheard(self, unheard: Mapping[int, str]) -> str:
        """Nodes without an answer, by the name they are registered or known by, and why."""
        named = {n: self._names.get(n) or self._registered.get(n) or f"node {n}" for n in unheard}
        return listed([f"{named[node]} {why}" for node, why in unheard.items()])

    def require(self, check: Callable[[Mapping[str, Any]], str]) -> None:
        """Set `check`, also for those who are there already."""
        self.check = check
        for name, node in list(self.nodes.items()):
            if check(self.facts[name]):
                del self.nodes[name], self._names[node]
                problem = self._enter(node, self.facts.pop(name))
                log(WARNING, "Client %s cannot take part: %s", name, problem)

    def _ask(self, grid: Grid, nodes: Iterable[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """The facts each node answers with; empty for an app that does not know the question."""
        if not self.asks:
            yield from ((node, {}) for node in nodes)
            return
        messages = [
            Message(RecordDict(), node, ROLL_CALL, ttl=self.timeout, group_id="roll-call")
            for node in nodes
        ]
        if not messages:
            return
        exchange = Exchange(grid, messages, self.timeout)
        for reply in exchange:
            node = exchange.recipients[reply.metadata.reply_to_message_id]
            if not reply.has_error():
                facts, problems = facts_in(reply.content, FACTS)
                # What it tells of itself cannot be relied on: with the first reason it is refused.
                yield node, facts | {"problem": said_wrong(problems)} if problems else facts
            elif reply.error.code == CLIENT_FAILED:
                yield node, {}
            else:
                self._unheard[node] = f"answered with an error: {first_line(reply.error.reason)}"
        silence = f"did not answer within {self.timeout:g} s"
        self._unheard |= dict.fromkeys(exchange.silent, silence)
        self._silent_since |= dict.fromkeys(exchange.silent, time.monotonic())

    def _enter(self, node: int, facts: Mapping[str, Any]) -> str:
        """Note what a node answered; the problem, if it cannot take part."""
        name = str(facts.get("client-id", node))
        problem = facts.get("problem", "") or (TWIN if name in self.nodes else "")
        problem = problem or self.check(facts)
        if problem:
            self.refused[node] = Refusal(name, problem, facts)
            return problem
        if name in self.facts:
            log(INFO, "Client %s is back, at node %d.", name, node)
        self._names[node], self.nodes[name], self.facts[name] = name, node, dict(facts)
        return ""

    def _too_few(self, at_least: int, announced: int) -> str:
        reasons = {refusal.reason for refusal in self.refused.values()}
        if not self.nodes and len(reasons) == 1:
            return reasons.pop()
        told = [f"{refusal.client}: {refusal.reason}" for refusal in self.refused.values()]
        refused = f"; refused: {'; '.join(told[:MOST_TOLD])}" if told else ""
        refused += f"; and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
        how = (
            f'add --federation-config "num-supernodes={at_least}" to `flwr run`, '
            f"or set -c min-available-nodes={max(len(self.nodes), 1)}"
            if announced or not self.nodes
            else "start more SuperNodes, or lower min-available-nodes"
        )
        if self._unheard:
            how = (
                f"connected as well: {self._told_unheard(self._unheard)}, as happens while a busy "
                "machine starts a simulation: start the run again, with a longer node-timeout "
                "where the app has one"
            )
        there = f" ({listed(self.clients)})" if self.nodes else ""
        gone = [name for name in self.facts if name not in self.nodes]
        left = f"; left again: {listed(in_order(gone))}" if gone else ""
        return (
            f"This run needs {at_least} SuperNodes (min-available-nodes) and has "
            f"{len(self.nodes)}{there}{refused}{left}: {how}."
        )


def said_wrong(problems: Iterable[str]) -> str:
    """Why a client cannot take part whose facts are not of the right kind."""
    return f"what it tells of itself is wrong: {'; '.join(problems)}"
