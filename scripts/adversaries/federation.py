"""A ClientApp in which some clients are adversaries."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, MessageType, RecordDict

from adversaries.attacks import COMES_AND_GOES, NEW_NAMES, Attack, Measured, Moment, Turn
from cflower.algorithm.weights import Vector, Weights
from cflower.client_app import app as client_app
from cflower.clients import node
from cflower.data.examples import ClientData
from cflower.messages.client_names import FACTS, ROLL_CALL
from cflower.messages.layout import Layout
from cflower.metric import BRIER
from cflower.seeding import generator
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid

Client = Callable[[Message, Context], Message]
CLIENT_APP_RAISED = 2
MANY = 100_000
"""From a node's number to the next one of the same client."""


class Federation:
    """A ClientApp in which some clients are adversaries."""

    def __init__(self, attack: Attack, adversaries: Collection[int]) -> None:
        self.attack, self.adversaries = attack, adversaries
        self._honest = defaultdict[tuple[int, str], list[Vector]](list)
        self._copied: dict[tuple[int, str], Vector] = {}
        self._asked = Counter[int]()
        self._first: Weights | None = None
        self.now = 0
        """The last round that trained."""

    def __call__(self, message: Message, context: Context) -> Message:
        client, kind = int(context.node_config["partition-id"]), message.metadata.message_type
        self._asked[client] += kind == MessageType.TRAIN
        moment = self._moment(client, message, context)
        self.now = max(self.now, moment.server_round)
        if client not in self.adversaries or not self.attack.when(moment):
            reply = client_app(message, context)
            if kind == MessageType.TRAIN and client not in self.adversaries:
                _, _, update = self._read(message, reply)
                self._honest[moment[0], moment[2]].append(np.concatenate(update))
            return reply
        if self.attack.silent and kind.startswith(self.attack.silent):
            return Message(Error(CLIENT_APP_RAISED, "silent"), reply_to=message)
        reply = self._poisoned(client, message, context)
        if kind == ROLL_CALL and (name := self._name(context)):
            reply.content.config_records[FACTS]["client-id"] = name
        elif kind == MessageType.TRAIN:
            self._spoil(message, reply, moment)
        for record in reply.content.metric_records.values():
            self._lie(record, moment)
        return reply

    def _name(self, context: Context) -> str:
        """The name that an adversary claims; empty: its own."""
        return f"new-{context.node_id}" if self.attack.presence == NEW_NAMES else self.attack.name

    def grid(self, *settings: Any) -> InlineGrid:
        """A grid with the adversaries' nodes as long as they are connected."""
        federation = self

        class Nodes(InlineGrid):
            def get_node_ids(self) -> Iterable[int]:
                nodes = super().get_node_ids()[: settings[1]]
                return [node for one in nodes for node in self._connected(one)]

            def _connected(self, node: int) -> list[int]:
                presence, now = federation.attack.presence, federation.now
                if node - FIRST_NODE_ID not in federation.adversaries:
                    return [node]
                if presence == COMES_AND_GOES and now % 2:
                    return []
                if presence != NEW_NAMES:
                    return [node]
                known, new = self._contexts[node], node + MANY * (now + 1)
                self._contexts.setdefault(new, replace(known, node_id=new, state=RecordDict()))
                return [new]

        return Nodes(*settings)

    def _moment(self, client: int, message: Message, context: Context) -> Moment:
        config = message.content.config_records.get("config", {})
        server_round, cluster = int(str(config.get("server-round", 0))), config.get("cluster", "0")
        rounds = int(str(context.run_config.get("num-server-rounds", 0)))
        return Moment(server_round, rounds, str(cluster), self._asked[client], client)

    def _poisoned(self, client: int, message: Message, context: Context) -> Message:
        """The reply of a client that trains on poisoned examples."""
        if self.attack.poison is None:
            return client_app(message, context)
        honest, poison = node.data_of, self.attack.poison

        def data_of(*args: Any) -> ClientData:
            data = honest(*args)
            return replace(data, train=poison(data.train, client))

        with patch.object(node, "data_of", data_of):
            return client_app(message, context)

    def _read(self, message: Message, reply: Message) -> tuple[Layout, Weights, Weights]:
        """The model that was sent, and the update that came back."""
        (sent,), (arrays,) = records_of(message), records_of(reply)
        layout = Layout.of(sent)
        model = layout.weights(sent)
        self._first = self._first or model
        return layout, model, layout.update(arrays, model)

    def _spoil(self, message: Message, reply: Message, moment: Moment) -> None:
        """Put what an adversary sends in place of its update."""
        layout, model, update = self._read(message, reply)
        place, sent = (moment.server_round, moment.cluster), self._copied
        if not self.attack.copied or place not in sent:
            honest = self._honest.items()
            everyone = [v for (r, _), some in honest if r == moment.server_round for v in some]
            own = np.concatenate(update)
            others, back = self._honest[place] or [own], map(np.subtract, self._first or (), model)
            back_to_first = np.concatenate([*back])
            turn = Turn(own, others, everyone or others, moment, back_to_first, layout)
            sent[place] = self.attack.send(turn)
        (key,) = reply.content.array_records
        reply.content[key] = layout.record(moved(layout, model, sent[place]))

    def _lie(self, record: Any, moment: Moment) -> None:
        """Put what an adversary says in place of its figures."""
        if "num-examples" in record:
            examples = self.attack.claim * float(str(record["num-examples"]))
            record["num-examples"] = max(1, int(examples))
        if "accuracy" in record:
            truth = float(str(record["accuracy"])), float(str(record.get("loss", 1.0)))
            rng = generator(moment.client, "lie", moment.server_round, str(truth))
            record["accuracy"], record["loss"] = self.attack.report(Measured(*truth, rng))
            if BRIER.name in record:
                record[BRIER.name] = 2 * (1 - float(str(record["accuracy"])))


def records_of(message: Message) -> list[ArrayRecord]:
    return list(message.content.array_records.values())


def moved(layout: Layout, model: Weights, update: Vector) -> Weights:
    """The model with this update, each entry a number of its array's type.

    Half of the largest number at most: the difference to the model must be a number, too.
    """
    parts = np.split(update, [layout.num_trained])
    after = Weights(*(np.add(a, b, dtype=float) for a, b in zip(model, parts, strict=True)))
    for entry in layout.entries:
        kind = np.finfo("f4") if entry.dtype.kind == "f" else np.iinfo("i4")
        np.clip(entry.of(after), kind.min / 2, kind.max / 2, out=entry.of(after))
    return Weights(after.trained.astype(layout.dtype), after.carried)


def staying_away(adversaries: Collection[int]) -> Client:
    """A ClientApp in which the adversaries are refused in the roll call."""

    def behave(message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        asked = message.metadata.message_type == ROLL_CALL
        if asked and int(context.node_config["partition-id"]) in adversaries:
            reply.content[FACTS]["problem"] = "stays away"
        return reply

    return behave
