"""Arrays that stay on the clients, such as normalisation layers (FedBN) or heads (FedPer, FedRep).

The server sends the whole model, and the replies lack these arrays. They are not aggregated, take
no part in norms and similarities, and keep the server's values: a reply counts as if it had them
unchanged, which any client could send anyway.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from logging import INFO

from flwr.app import ArrayRecord, Message
from flwr.supercore import log

from cflower.messages.arrays import records_in
from cflower.messages.layout import Layout
from cflower.ordering import listed

Keys = frozenset[str]
LEFT_OUT = (
    "Most replies lack the array(s) {}: these stay on the clients, as in FedBN. They are not "
    "aggregated, and the server's models keep the values that they have."
)
SENT_AGAIN = "Most replies have all arrays of the model: all are aggregated."


@dataclass
class LocalArrays:
    """Which arrays stay on the clients: those that more than half of a round's replies lack.

    So no client decides what the others send. A reply that lacks more is refused (`Layout.update`),
    and what another one sends of them does not count.
    """

    layout: Layout
    keys: Keys = frozenset()
    """The arrays that most replies of the last round lacked."""

    def after_most(self, replies: Iterable[Message]) -> Iterator[Message]:
        """The replies of a round; those that lack others than `keys` when they come are last.

        By then all have come, and `keys` is what most of them lack. In the first round replies
        with all arrays count before that, and once.
        """
        votes, waiting = dict[int, Keys](), list[Message]()
        for reply in replies:
            lacks = lacking(reply, self.layout)
            if lacks is not None:
                votes[reply.metadata.src_node_id] = lacks
            if lacks is None or lacks == self.keys:
                yield reply
            else:
                waiting.append(reply)
        for keys, number in Counter(votes.values()).items():
            if 2 * number > len(votes) and keys != self.keys:
                self.keys = keys
                log(INFO, "%s", LEFT_OUT.format(listed(sorted(keys))) if keys else SENT_AGAIN)
        yield from waiting


def lacking(reply: Message, layout: Layout) -> Keys | None:
    """The arrays that a reply lacks; None if it has none that is trained, or no one model."""
    records = [*records_in(reply.content, ArrayRecord).values()] if reply.has_content() else []
    keys = set(records[0]) if len(records) == 1 else set()
    trained = {entry.key for entry in layout.entries if entry.trained}
    return layout.keys - keys if keys & trained else None
