"""The server's side of permuted weights: clients with one seed, and the first model from them."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log
from numpy.typing import NDArray

from cflower.errors import FederationError
from cflower.messages.client_names import COMMITMENT
from cflower.messages.exchange import Exchange
from cflower.messages.failures import BadReplyError
from cflower.messages.layout import Layout
from cflower.messages.replies import content_of, the_one
from cflower.messages.roll_call import RollCall
from cflower.ordering import line, listed, only, without
from cflower.seeding import generator

FIRST_MODEL = "query.first_model"
Arrays = tuple[NDArray[Any], ...]
NOT_PERMUTED = (
    "its seed-file makes it permute its weights, but this run has privacy = 'none'; "
    "set privacy = 'permutation'"
)
NO_SEED = (
    "privacy = 'permutation' needs a secret that all clients share, and it has none; name its file "
    "as seed-file in the node config, or for a simulation in the run config"
)
VOICES = 5
"""Clients that are asked for the first model at once."""
OTHER_MODEL = (
    "its first model is not that of most clients that were asked; all need the same version of the "
    "app, of PyTorch, and the same seed file"
)
SAME_MODEL = "All need the same version of the app, of PyTorch, and the same seed file."
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
    """The initial model of a run with permuted weights, on which most of some clients agree.

    ``about`` is the config of the message.

    The server must not make it: the permutation follows from a model and its permuted version. So
    `VOICES` clients are asked, and others if these do not agree. Who sends another model takes no
    part. `FederationError` if no client sends a model that fits the layout, which no permutation
    changes, or if most of them do not agree.
    """
    there, problem = roll_call.clients, "no client is connected"
    order = generator(roll_call.seed, "first-model").permutation(len(there)).tolist()
    models = dict[str, tuple[ArrayRecord, Arrays]]()  # by the first client that sent it
    groups = dict[str, list[str]]()  # the clients with the same model, by the first of them
    for begin in range(0, len(order), VOICES):
        asked = [there[i] for i in order[begin : begin + VOICES]]
        silent = f"did not answer within {roll_call.timeout:g} s"
        problems = {client: f"{client} {silent}" for client in asked}
        for client, reply in first_models(grid, roll_call, asked, about or ConfigRecord()):
            try:
                arrays = the_one(ArrayRecord, content_of(reply))
                weights = layout.weights(arrays)
            except BadReplyError as bad:
                problems[client] = f"the reply of {client} {bad}"
                continue
            del problems[client]
            alike = (one for one, (_, other) in models.items() if same_weights(weights, other))
            first = next(alike, client)
            models.setdefault(first, (arrays, weights))
            groups.setdefault(first, []).append(client)
        for problem in map(line, problems.values()):
            log(WARNING, "No first model: %s.", problem)
        sent = [*chain(*groups.values())]
        agreed = max(groups.values(), key=len, default=[])
        over = begin + VOICES >= len(order)
        if 2 * len(agreed) > len(sent) and (len(sent) > 1 or over):
            roll_call.refuse(dict.fromkeys(without(dict.fromkeys(sent), agreed), OTHER_MODEL))
            return models[agreed[0]][0]
    if models:
        sides = " against ".join(listed(group, 5) for group in groups.values())
        raise FederationError(f"The clients' first models differ: {sides}. {SAME_MODEL}")
    raise FederationError(f"No client gave a first model; the last one asked: {problem}.")


def first_models(
    grid: Grid, roll_call: RollCall, asked: Sequence[str], about: ConfigRecord
) -> Iterator[tuple[str, Message]]:
    """The reply of each of these clients."""
    messages = [
        Message(RecordDict({"config": about}), node, FIRST_MODEL, group_id="first-model")
        for node in only(roll_call.nodes, asked).values()
    ]
    exchange = Exchange(grid, messages, roll_call.timeout, name_of=roll_call.name_of)
    for reply in exchange:
        yield exchange.recipients[reply.metadata.reply_to_message_id], reply


def same_weights(one: Arrays, other: Arrays) -> bool:
    """Whether values are the same but for the rounding of another processor."""
    pairs = zip(one, other, strict=True)
    return all(np.allclose(ours, theirs, rtol=1e-3, atol=1e-6) for ours, theirs in pairs)
