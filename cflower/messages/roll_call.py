"""The clients of a run by name: node ids change, names last.

A node id is valid for one run in simulation, and changes when an unauthenticated SuperNode
restarts. An unknown node is therefore asked once for its client's name and facts if its
ClientApp can answer; otherwise its node id is the name. Only the start of a run waits for answers.

A simulation asks all nodes: its ids are random, and the same seed must sample the same clients.
Of real nodes, each of which starts a process to answer, only those that are sampled are asked: as
many as train in the first round, and in every round the same share of the others, which take part
in the next.
"""

import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Set
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any, NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.errors import FederationError
from cflower.messages.claims import facts_in
from cflower.messages.client_names import FACTS, ROLL_CALL, has_function
from cflower.messages.failures import CLIENT_FAILED, FAULTS, Fault
from cflower.messages.replies import first_line
from cflower.ordering import in_order, line, listed
from cflower.seeding import generator

DUPLICATE = "another node already holds this name: give each SuperNode a client-id of its own"
REGISTERED = "another node is registered by this name: give each SuperNode a client-id of its own"
SILENT = (
    "no answer to the roll call within {:g} s, as happens while a busy machine starts a "
    "simulation; a longer node-timeout helps where the app has one"
)
UNREACHABLE = (Fault.ABSENT, Fault.SILENT)
"""The SuperLink answers for the node."""
FAILED = (
    "The client(s) of node(s) %s failed in the roll call and have no lasting name, only their node "
    "ids: %s. A mod of the whole ClientApp may be the reason: mods for training belong to "
    "@app.train(mods=[...])."
)


class Refusal(NamedTuple):
    """The reason why a connected node does not take part."""

    client: str
    reason: str
    facts: Mapping[str, Any]
    silent: bool = False
    """It has not answered yet, and is asked again after each `RollCall.timeout`."""

    def holds(self, nodes: Container[str]) -> bool:
        """Whether the reason still holds, given the clients that take part."""
        return self.reason != DUPLICATE or self.client in nodes


class Asked(NamedTuple):
    """The question to a node that has not answered."""

    until: float
    """The end of the time to answer, as `time.monotonic`."""
    message_id: str
    """Empty if no answer can come, because the node could not be reached."""


@dataclass
class RollCall:
    """The clients of a run by name, and the node of each."""

    timeout: float = 60.0
    """Seconds that the start of a run waits for nodes and their answers."""
    nodes: dict[str, int] = field(default_factory=dict)
    """Node id by client name, of clients that are connected."""
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The facts that each client reported."""
    refused: dict[int, Refusal] = field(default_factory=dict)
    """Connected nodes that do not take part, by node id."""
    check: Callable[[Mapping[str, Any]], str] = lambda facts: ""
    """From a client's facts to the reason why it cannot take part; empty if it can."""
    asks: bool | None = True
    """Whether nodes are asked for their name and facts. None: if the run's ClientApp can answer,
    see `cflower.name_clients`."""
    grid: Grid | None = None
    """The grid whose nodes these are; on another one they are forgotten."""
    remote: bool = True
    """Whether the nodes are processes of their own, and no simulation's."""
    share: float = 1.0
    """Share of the real nodes that take part in a round, and are asked for it."""
    seed: int = 0
    """Seed of the draw of these nodes."""
    connected: int = 0
    """Number of connected nodes that are not refused."""
    drawn: set[str] = field(default_factory=set)
    """Clients of real nodes that were drawn and have not been asked to train yet."""
    _registered: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The nodes that an operator registered by each name, as far as they were connected."""
    _names: dict[int, str] = field(default_factory=dict)
    """Clients by node id, of all nodes that were accepted."""
    _asked: dict[int, Asked] = field(default_factory=dict)
    _can_ask: bool = True

    @property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients that are connected, in natural order."""
        return in_order(self.nodes)

    @property
    def announced(self) -> int:
        """The number of clients of a simulation that most clients report; 0 if they do not."""
        refused = (one.facts for one in self.refused.values() if one.facts)
        reports = [facts.get("num-partitions", 0) for facts in (*self.facts.values(), *refused)]
        ((number, votes),) = Counter(reports).most_common(1) or [(0, 0)]
        return number if 2 * votes > len(reports) else 0

    @property
    def simulated(self) -> bool:
        """Whether this is a simulation, with nodes that are there from first to last."""
        return bool(self.announced) and not self.remote

    @property
    def _some_only(self) -> bool:
        """Whether nodes are asked only when they are drawn."""
        return self.remote and self.share < 1

    def name_of(self, node_id: int) -> str:
        """The client at a node; the node id itself for one that never answered."""
        return self._names.get(node_id, str(node_id))

    def gather(self, grid: Grid, at_least: int) -> tuple[str, ...]:
        """Wait for enough clients, and for all that a simulation announces.

        `FederationError` if there are too few after ``timeout`` seconds, or in a simulation that
        is complete.
        """
        began, before, wanted = time.monotonic(), -1, float(at_least)
        while True:
            unanswered = self.update(grid, wanted)
            count, waited = len(self.nodes) + len(self.refused), time.monotonic() - began
            # Nodes that do not report how many they are may still be connecting.
            settled = (self._can_ask or count == before) and not unanswered
            complete = settled and (count >= self.announced or self._some_only)
            enough = len(self.nodes) >= at_least
            # A simulation never grows, so there is nothing to wait for.
            if waited > self.timeout or (complete and (enough or self.simulated)):
                break
            time.sleep(min(1.0, max(0.1, waited / 20)))
            before = count
            # Where some that were drawn are silent or refused, all others may take their place.
            wanted = at_least if waited < self.timeout / 2 else math.inf
        if not enough:
            raise FederationError(self._too_few(at_least))
        return self.clients

    def update(self, grid: Grid, at_least: float | None = None) -> int:
        """Ask the nodes that are not known yet, and admit those that have answered.

        Returns how many were asked and have not answered, without waiting for them. With
        ``at_least``, of real nodes only so many are asked in all, or `share` of them if that is
        more; without, `share` of those that were never asked.
        """
        before, unknown = self.refused, self._look(grid)
        answers: Mapping[int, dict[str, Any]] = {node: {} for node in unknown}
        if self._can_ask:
            late = self._late(grid)
            self._ask(grid, late | self._draw(unknown - self._asked.keys(), at_least))
            answers = self._answers(grid)
            for known in grid.get_nodes() if answers else ():
                self._registered[known.name].add(known.node_id)
        self._admit(answers)
        if self._can_ask and self._some_only:
            self.drawn |= {self._names[node] for node in answers if node in self._names}
        self._log_refused(before)
        return len(self._asked)

    def require(self, check: Callable[[Mapping[str, Any]], str]) -> None:
        """Set `check`, and apply it to the clients that are there."""
        self.check, before = check, dict(self.refused)
        answers = {node: self.facts[client] for client, node in self.nodes.items()}
        self.nodes, self.facts, self._names = {}, {}, {}
        self._admit(answers)
        self._log_refused(before)

    def _look(self, grid: Grid) -> Set[int]:
        """Forget the nodes that are gone; the connected ones that are not known yet."""
        if grid is not self.grid:
            self._begin_on(grid)
        live, before = set(grid.get_node_ids()), self.refused
        self.nodes = {name: node for node, name in self._names.items() if node in live}
        # A refused or silent node that leaves and returns is asked again: its cause may be gone.
        self.refused = {n: one for n, one in before.items() if n in live and one.holds(self.nodes)}
        refused = {node for node, one in self.refused.items() if not one.silent}
        self.connected = len(live) - len(refused)
        unknown = live - self._names.keys() - refused
        self._asked = {node: asked for node, asked in self._asked.items() if node in unknown}
        return unknown

    def _begin_on(self, grid: Grid) -> None:
        """Forget the nodes of another grid: its node ids may be other clients' here."""
        self.grid = grid
        # Loads databases for a second; without its module loaded, no grid is an HttpGrid.
        remote = sys.modules.get("flwr.superlink.grid")
        self.remote = remote is not None and isinstance(grid, remote.HttpGrid)
        self._can_ask = (
            has_function(grid, ROLL_CALL, if_unknown=False) if self.asks is None else self.asks
        )
        for known in (
            self.nodes,
            self.facts,
            self.refused,
            self.drawn,
            self._registered,
            self._names,
            self._asked,
        ):
            known.clear()

    def _draw(self, unasked: Set[int], at_least: float | None) -> Set[int]:
        """Those of the nodes to ask now."""
        if not self._some_only:
            return unasked
        number = self.share * len(unasked)
        if at_least is not None:
            number = max(at_least, self.share * self.connected) - len(self.nodes) - len(self._asked)
        nodes, rng = sorted(unasked), generator(self.seed, "roll-call", len(self._names))
        order = rng.permutation(len(nodes)).tolist()
        return {nodes[i] for i in order[: math.ceil(min(max(number, 0), len(nodes)))]}

    def _late(self, grid: Grid) -> Set[int]:
        """The nodes that have been silent for too long; they are refused until they answer."""
        now = time.monotonic()
        late = {node for node, asked in self._asked.items() if asked.until < now}
        names = {n.node_id: line(n.name or "") for n in grid.get_nodes()} if late else {}
        for node in late:
            client, reason = names.get(node) or f"node {node}", SILENT.format(self.timeout)
            self.refused.setdefault(node, Refusal(client, reason, {}, silent=True))
        return late

    def _ask(self, grid: Grid, nodes: Set[int]) -> None:
        """Ask these nodes; none is asked twice within `timeout`."""
        options: Any = {"ttl": self.timeout, "group_id": "roll-call"}
        messages = [Message(RecordDict(), node, ROLL_CALL, **options) for node in sorted(nodes)]
        pushed, until = set(grid.push_messages(messages)), time.monotonic() + self.timeout
        for sent in (message.metadata for message in messages):
            message_id = sent.message_id if sent.message_id in pushed else ""
            self._asked[sent.dst_node_id] = Asked(until, message_id)

    def _answers(self, grid: Grid) -> dict[int, dict[str, Any]]:
        """The facts in the answers that are there; none of a client that replies with an error."""
        answers, failed = dict[int, dict[str, Any]](), defaultdict[str, list[str]](list)
        open_ids = {one.message_id: node for node, one in self._asked.items() if one.message_id}
        while open_ids and (replies := list(grid.pull_messages(open_ids.keys()))):
            for reply in replies:
                node = open_ids.pop(reply.metadata.reply_to_message_id, None)
                if node is None:
                    continue
                asked = self._asked.pop(node)
                if not reply.has_error():
                    answers[node], invalid = facts_in(reply.content, FACTS)
                    if invalid:
                        answers[node]["problem"] = f"its facts are not valid: {'; '.join(invalid)}"
                elif FAULTS.get(reply.error.code, Fault.CLIENT) in UNREACHABLE:
                    self._asked[node] = asked._replace(message_id="")
                else:
                    answers[node] = {}
                    if reply.error.code != CLIENT_FAILED:
                        failed[first_line(reply.error.reason)].append(str(node))
        for reason, nodes in failed.items():
            log(WARNING, FAILED, listed(nodes), reason)
        return answers

    def _admit(self, answers: Mapping[int, dict[str, Any]]) -> None:
        """Accept or refuse the clients at these nodes, given their facts."""
        for node, facts in answers.items():
            self.refused.pop(node, None)
            client = str(facts.get("client-id", node))
            taken = DUPLICATE if client in self.nodes else ""
            if node not in self._registered.get(client, {node}):
                taken = REGISTERED
            if problem := facts.get("problem") or taken or self.check(facts):
                self.refused[node] = Refusal(client, problem, facts)
                continue
            if client in self.facts:
                log(INFO, "Client %s is back, at node %d.", client, node)
            self._names[node], self.nodes[client], self.facts[client] = client, node, facts

    def _log_refused(self, before: Mapping[int, Refusal]) -> None:
        """Log the nodes that are refused for a new reason, one line for each reason."""
        clients = defaultdict(list)
        for node, refusal in self.refused.items():
            if node not in before or before[node].reason != refusal.reason:
                clients[refusal.reason].append(refusal.client)
        for reason, names in clients.items():
            log(WARNING, "Client(s) %s cannot take part: %s", listed(in_order(names)), reason)

    def _too_few(self, at_least: int) -> str:
        """The error when there are fewer clients than needed."""
        reasons, count = {refusal.reason for refusal in self.refused.values()}, len(self.nodes)
        if not count and len(reasons) == 1:
            return reasons.pop()
        clients = defaultdict[str, list[str]](list)
        for one in self.refused.values():
            clients[one.reason.rstrip(".")].append(one.client)
        refused = [f"{listed(in_order(names), 5)}: {reason}" for reason, names in clients.items()]
        gone = in_order(self.facts.keys() - self.nodes.keys())
        details = {"connected": self.clients, "refused": refused, "disconnected": gone}
        named = {words: listed(names, longest=500) for words, names in details.items() if names}
        known = "".join(f"; {words}: {names}" for words, names in named.items())
        return (
            f"This run needs {at_least} clients and has {count}{known}. Add "
            f'--federation-config "num-supernodes={at_least}" to `flwr run`, or --clients '
            f"{at_least} to `cflower simulate`, or start more SuperNodes, or let it wait for "
            f"fewer: min-available-nodes={max(count, 1)} in the config of cflower's own app, "
            f"ClusteredFL(min_available_nodes={max(count, 1)}) in another."
        )
