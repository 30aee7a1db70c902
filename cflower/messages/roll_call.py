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
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from logging import INFO, WARNING
from typing import Any, NamedTuple, TypeVar

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.errors import FederationError
from cflower.messages.claims import facts_in
from cflower.messages.client_names import EVALUATE_ONLY, FACTS, ROLL_CALL, has_function
from cflower.messages.failures import CLIENT_FAILED, FAULTS, Fault
from cflower.messages.flower import is_remote
from cflower.messages.grouped_log import GroupedLog
from cflower.messages.replies import cause_in
from cflower.ordering import in_order, line, listed
from cflower.seeding import generator

DUPLICATE = "another node already holds this name: give each SuperNode a client-id of its own"
REGISTERED = "another node is registered by this name: give each SuperNode a client-id of its own"
NO_ANSWER = (
    "no answer to the roll call within {:g} s, as happens while a busy machine starts a "
    "simulation; a longer node-timeout helps where the app has one"
)
CANNOT_TAKE_PART = "Without {clients}, which cannot take part: {cause}"
UNREACHABLE = (Fault.ABSENT, Fault.SILENT)
"""The SuperLink answers for the node."""
FAILED_IN_ROLL_CALL = (
    "The client(s) of node(s) %s failed in the roll call and have no lasting name, only their node "
    "ids: %s. A mod of the whole ClientApp may be the reason: mods for training belong to "
    "@app.train(mods=[...])."
)


class Member(NamedTuple):
    """A node whose client takes part, also while it is not connected."""

    client: str
    facts: Mapping[str, Any]


class Refused(NamedTuple):
    """A connected node that does not take part, with the reason."""

    client: str
    reason: str
    facts: Mapping[str, Any]


class Asked(NamedTuple):
    """A connected node that has not answered."""

    until: float
    """The end of the time to answer, as `time.monotonic`; then it is asked again."""
    message_id: str
    """Empty if no answer can come, because the node could not be reached."""
    late: Refused | None = None
    """Why it does not take part so far, once it was silent for too long."""


State = TypeVar("State", Member, Refused, Asked)


@dataclass
class RollCall:
    """The clients of a run by name, and the node of each."""

    timeout: float = 60.0
    """Seconds that the start of a run waits for nodes and their answers."""
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
    drawn: set[str] = field(default_factory=set)
    """Clients of real nodes that were drawn and have not been asked to train yet."""
    _registered: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The nodes that an operator registered by each name, as far as they were connected."""
    _states: dict[int, Member | Refused | Asked] = field(default_factory=dict)
    """By node id."""
    _live: Set[int] = frozenset()
    """The connected nodes."""
    _log: GroupedLog = field(default_factory=GroupedLog)
    _can_ask: bool = True

    def _are(self, state: type[State]) -> dict[int, State]:
        return {node: one for node, one in self._states.items() if isinstance(one, state)}

    @property
    def nodes(self) -> dict[str, int]:
        """Node id of each connected client."""
        members = self._are(Member).items()
        return {one.client: node for node, one in members if node in self._live}

    @property
    def facts(self) -> dict[str, Mapping[str, Any]]:
        """Facts of each client, also while it is not connected."""
        return {one.client: one.facts for one in self._are(Member).values()}

    @property
    def connected(self) -> int:
        """Number of connected nodes that are not refused."""
        return len(self._live - self._are(Refused).keys())

    @property
    def refused(self) -> dict[int, Refused]:
        """Connected nodes that do not take part, by node id; silent ones may answer yet."""
        silent = {node: asked.late for node, asked in self._are(Asked).items() if asked.late}
        return self._are(Refused) | silent

    @property
    def clients(self) -> tuple[str, ...]:
        return in_order(self.nodes)

    @property
    def only_evaluating(self) -> set[str]:
        return {client for client, facts in self.facts.items() if facts.get(EVALUATE_ONLY)}

    @property
    def announced(self) -> int:
        """The number of clients of a simulation that most clients report; 0 if they do not."""
        refused = (one.facts for one in self.refused.values() if one.facts)
        reports = [facts.get("num-partitions", 0) for facts in (*self.facts.values(), *refused)]
        ((number, votes),) = Counter(reports).most_common(1) or [(0, 0)]
        return number if 2 * votes > len(reports) else 0

    @property
    def simulated(self) -> bool:
        return bool(self.announced) and not self.remote

    @property
    def _some_only(self) -> bool:
        return self.remote and self.share < 1

    def name_of(self, node_id: int) -> str:
        known = self._states.get(node_id)
        return known.client if isinstance(known, Member) else str(node_id)

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
        unasked = self._look(grid)
        answers: Mapping[int, dict[str, Any]] = {node: {} for node in unasked}
        if self._can_ask:
            self._ask(grid, self._late(grid) | self._draw(unasked, at_least))
            answers = self._answers(grid)
            for known in grid.get_nodes() if answers else ():
                self._registered[known.name].add(known.node_id)
        self._admit(answers)
        if self._can_ask and self._some_only:
            members = self._are(Member)
            self.drawn |= {members[node].client for node in answers if node in members}
        self._log_refused()
        return len(self._are(Asked))

    def require(self, check: Callable[[Mapping[str, Any]], str]) -> None:
        """Set `check`, and apply it to the clients that are there."""
        self.check, members = check, self._are(Member)
        for node in members:
            del self._states[node]
        self._admit({node: one.facts for node, one in members.items() if node in self._live})
        self._log_refused()

    def refuse(self, clients: Mapping[str, str]) -> None:
        for node, (client, facts) in self._are(Member).items():
            if client in clients:
                self._states[node] = Refused(client, clients[client], facts)
        self._log_refused()

    def _look(self, grid: Grid) -> Set[int]:
        """Forget the nodes that are gone; the connected ones that were never asked."""
        if grid is not self.grid:  # the same node ids may be other clients there
            self.grid, self.remote, self._can_ask = grid, is_remote(grid), bool(self.asks)
            if self.asks is None:
                self._can_ask = has_function(grid, ROLL_CALL, if_unknown=False)
            self.drawn, self._states = set(), {}
            self._registered.clear()
        self._live = set(grid.get_node_ids())
        held = self.nodes
        # A node that leaves and returns is asked again: its cause may be gone.
        for node, one in list(self._states.items()):
            freed = isinstance(one, Refused) and one.reason == DUPLICATE and one.client not in held
            if freed or not (isinstance(one, Member) or node in self._live):
                del self._states[node]
        return self._live - self._states.keys()

    def _draw(self, unasked: Set[int], at_least: float | None) -> Set[int]:
        """Those of the nodes to ask now."""
        if not self._some_only:
            return unasked
        number = self.share * len(unasked)
        if at_least is not None:
            known = len(self.nodes) + len(self._are(Asked))
            number = max(at_least, self.share * self.connected) - known
        nodes, rng = sorted(unasked), generator(self.seed, "roll-call", len(self._are(Member)))
        order = rng.permutation(len(nodes)).tolist()
        return {nodes[i] for i in order[: math.ceil(min(max(number, 0), len(nodes)))]}

    def _late(self, grid: Grid) -> Set[int]:
        """The nodes that have been silent for too long; they are refused until they answer."""
        now = time.monotonic()
        late = {node: asked for node, asked in self._are(Asked).items() if asked.until < now}
        if not late:
            return set()
        names = {one.node_id: line(one.name) for one in grid.get_nodes() if one.name}
        for node, asked in late.items():
            refused = Refused(names.get(node, f"node {node}"), NO_ANSWER.format(self.timeout), {})
            self._states[node] = asked._replace(late=asked.late or refused)
        return late.keys()

    def _ask(self, grid: Grid, nodes: Set[int]) -> None:
        """Ask these nodes; none is asked twice within `timeout`."""
        options: Any = {"ttl": self.timeout, "group_id": "roll-call"}
        messages = [Message(RecordDict(), node, ROLL_CALL, **options) for node in sorted(nodes)]
        pushed, until = set(grid.push_messages(messages)), time.monotonic() + self.timeout
        for sent in (message.metadata for message in messages):
            message_id = sent.message_id if sent.message_id in pushed else ""
            late = getattr(self._states.get(sent.dst_node_id), "late", None)
            self._states[sent.dst_node_id] = Asked(until, message_id, late)

    def _answers(self, grid: Grid) -> dict[int, dict[str, Any]]:
        """The facts in the answers that are there; none of a client that replies with an error."""
        answers, failed = dict[int, dict[str, Any]](), defaultdict[str, list[str]](list)
        asked = self._are(Asked)
        waiting = {one.message_id: node for node, one in asked.items()}
        waiting.pop("", None)
        while waiting and (replies := list(grid.pull_messages(waiting.keys()))):
            for reply in replies:
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is None:
                    continue
                fault = FAULTS.get(reply.error.code, Fault.CLIENT) if reply.has_error() else None
                if fault in UNREACHABLE:
                    self._states[node] = asked[node]._replace(message_id="")
                    continue
                answers[node], invalid = ({}, ()) if fault else facts_in(reply.content, FACTS)
                if invalid:
                    answers[node]["problem"] = f"its facts are not valid: {'; '.join(invalid)}"
                if fault and reply.error.code != CLIENT_FAILED:
                    failed[cause_in(reply.error.reason)].append(str(node))
        for reason, nodes in failed.items():
            log(WARNING, FAILED_IN_ROLL_CALL, listed(nodes), reason)
        return answers

    def _admit(self, answers: Mapping[int, Mapping[str, Any]]) -> None:
        """Accept or refuse the clients at these nodes, given their facts."""
        held, known = set(self.nodes), set(self.facts)
        for node, facts in answers.items():
            client = str(facts.get("client-id", node))
            taken = DUPLICATE if client in held else ""
            if node not in self._registered.get(client, {node}):
                taken = REGISTERED
            if problem := facts.get("problem") or taken or self.check(facts):
                self._states[node] = Refused(client, problem, facts)
                continue
            if client in known:
                log(INFO, "Client %s is back, at node %d.", client, node)
            self._states.pop(node, None)  # a client's newest node is the last one
            self._states[node] = Member(client, facts)
            held.add(client)

    def _log_refused(self) -> None:
        if self.simulated and not self.nodes:
            return  # no client takes part: this ends the run, with the reasons
        for one in self.refused.values():
            self._log.note(WARNING, CANNOT_TAKE_PART, one.client, one.reason)
        self._log.flush()

    def _too_few(self, at_least: int) -> str:
        reasons, count = defaultdict[str, list[str]](list), len(self.nodes)
        for one in self.refused.values():
            reasons[one.reason].append(one.client)
        if not count and len(reasons) == 1:
            return next(iter(reasons))
        refused = [
            f"{listed(in_order(names), 5)}: {reason.rstrip('.')}"
            for reason, names in reasons.items()
        ]
        gone = in_order(self.facts.keys() - self.nodes.keys())
        details = {"connected": self.clients, "refused": refused, "disconnected": gone}
        named = {w: listed(names, 3, longest=300) for w, names in details.items() if names}
        known = "".join(f"; {words}: {names}" for words, names in named.items())
        fewer = (
            f"min-available-nodes={max(count, 1)} in the config of cflower's own app, "
            f"ClusteredFL(min_available_nodes={max(count, 1)}) in another."
        )
        if count + len(self.refused) >= at_least:
            correct = "Correct the data of the refused clients"
            advice = f"{correct}, or let it do without them: {fewer}" if count else f"{correct}."
        else:
            advice = (
                f'Add --federation-config "num-supernodes={at_least}" to `flwr run`, or --clients '
                f"{at_least} to `cflower simulate`, or start more SuperNodes, or let it wait for "
                f"fewer: {fewer}"
            )
        return f"This run needs {at_least} clients and has {count}{known}. {advice}"
