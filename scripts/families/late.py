"""Clients that answer late, in rounds: what `battery --late` measures."""

from collections.abc import Iterable
from typing import Any

from flwr.app import Message

from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid

SLOW = 10
"""The last one of so many clients is slow."""


class LateGrid(InlineGrid):
    """In process, with one client of ten whose replies to training come some rounds later."""

    def __init__(self, *args: Any, rounds: int) -> None:
        super().__init__(*args)
        self._rounds, self._now = rounds, 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Notes which round it is."""
        messages = list(messages)
        self._now = max([self._now, *map(round_of, messages)])
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The first reply that is due."""
        return super().pull_messages({i for i in message_ids if self._due(self._pending[i])})

    def _due(self, message: Message) -> bool:
        slow = (message.metadata.dst_node_id - FIRST_NODE_ID) % SLOW == SLOW - 1
        training = message.metadata.message_type == "train"
        return not (slow and training) or self._now >= round_of(message) + self._rounds


def round_of(message: Message) -> int:
    """The round a message is of; 0 for the roll call."""
    return int(str(message.content.config_records.get("config", {}).get("server-round", 0)))
