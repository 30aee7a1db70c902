"""The server's side of permuted weights: clients with one seed, and the first model from them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.errors import FederationError
from cflower.messages.client_names import COMMITMENT
from cflower.messages.exchange import Exchange
from cflower.messages.failures import BadReplyError
from cflower.messages.layout import Layout
from cflower.messages.replies import content_of, the_one
from cflower.messages.roll_call import RollCall
from cflower.ordering import line

FIRST_MODEL = "query.first_model"
NOT_PERMUTED = (
    "its seed-file makes it permute its weights, but this run has privacy = 'none'; "
    "set privacy = 'permutation'"
)
NO_SEED = (
    "privacy = 'permutation' needs a secret that all clients share, and it has none; name its file "
    "as seed-file in the node config, or for a simulation in the run config"
)
OTHER_SEED = "its seed differs from that of the others; give all clients the same seed file"


def seed_check(
    facts: Iterable[Mapping[str, Any]], *, permuted: bool
) -> Callable[[Mapping[str, Any]], str]:
    """From a client's facts to the reason why it cannot take part; empty if it can.

    With permuted weights all clients need the seed of most of them (the first one in a tie).
    """
    seeds = Counter(str(one[COMMITMENT]) for one in facts if COMMITMENT in one)
    agreed = seeds.most_common(1)[0][0] if permuted and seeds else ""

    def problem_with(facts: Mapping[str, Any]) -> str:
        theirs = str(facts.get(COMMITMENT, ""))
        if bool(theirs) is permuted:
            return "" if theirs == agreed else OTHER_SEED
        return NO_SEED if permuted else NOT_PERMUTED

    return problem_with


def ask_first_model(
    grid: Grid, roll_call: RollCall, layout: Layout, about: ConfigRecord | None = None
) -> ArrayRecord:
    """The initial model of a run with permuted weights, from the first client that sends one.

    ``about`` is the config of the message.

    The server must not make it: the permutation follows from a model and its permuted version.
    `FederationError` if no client sends a model that fits the layout, which no permutation changes.
    """
    reason = "no client is connected"
    for client in roll_call.clients:
        node, seconds = roll_call.nodes[client], roll_call.timeout
        message = Message(
            RecordDict({"config": about or ConfigRecord()}),
            node,
            FIRST_MODEL,
            group_id="first-model",
        )
        reason = f"{client} did not answer within {seconds:g} s"
        for reply in Exchange(grid, [message], seconds):
            try:
                arrays = the_one(ArrayRecord, content_of(reply))
                layout.weights(arrays)
                return arrays
            except BadReplyError as problem:
                reason = f"the reply of {client} {problem}"
        log(WARNING, "No first model: %s.", line(reason))
    raise FederationError(f"No client gave a first model; the last one asked: {line(reason)}.")
