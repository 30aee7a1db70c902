"""The server's side of permuted weights: clients with one seed, and the first model from them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import WARNING
from typing import Any, NamedTuple

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
from cflower.ordering import line, listed, only
from cflower.seeding import generator

FIRST_MODEL = "query.first_model"
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


class Candidate(NamedTuple):
    """A first model, and the clients that sent it."""

    arrays: ArrayRecord
    weights: tuple[NDArray[Any], ...]
    clients: list[str]


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
    there = roll_call.clients
    order = generator(roll_call.seed, "first-model").permutation(len(there)).tolist()
    clients = [there[i] for i in order]
    problem, candidates = "no client is connected", list[Candidate]()
    for first in range(0, len(clients), VOICES):
        asked = clients[first : first + VOICES]
        for client, answer in first_models(grid, roll_call, layout, asked, about).items():
            if isinstance(answer, str):
                problem = line(answer)
                log(WARNING, "No first model: %s.", problem)
            elif alike := [c for c in candidates if all(map(same_weights, c[1], answer[1]))]:
                alike[0].clients.append(client)
            else:
                candidates.append(answer)
        sent = sum(len(one.clients) for one in candidates)
        agreed = max(candidates, key=lambda one: len(one.clients), default=None)
        over = first + VOICES >= len(clients)
        if agreed and 2 * len(agreed.clients) > sent and (sent > 1 or over):
            others = [name for one in candidates if one is not agreed for name in one.clients]
            roll_call.refuse(dict.fromkeys(others, OTHER_MODEL))
            return agreed.arrays
    if candidates:
        groups = " against ".join(listed(one.clients, 5) for one in candidates)
        raise FederationError(f"The clients' first models differ: {groups}. {SAME_MODEL}")
    raise FederationError(f"No client gave a first model; the last one asked: {problem}.")


def first_models(
    grid: Grid,
    roll_call: RollCall,
    layout: Layout,
    asked: Sequence[str],
    about: ConfigRecord | None,
) -> dict[str, Candidate | str]:
    """The model of each of these clients, or why there is none."""
    seconds = roll_call.timeout
    answers: dict[str, Candidate | str] = {
        name: f"{name} did not answer within {seconds:g} s" for name in asked
    }
    config = about or ConfigRecord()
    messages = [
        Message(RecordDict({"config": config}), node, FIRST_MODEL, group_id="first-model")
        for node in only(roll_call.nodes, asked).values()
    ]
    exchange = Exchange(grid, messages, seconds, name_of=roll_call.name_of)
    for reply in exchange:
        client = exchange.recipients[reply.metadata.reply_to_message_id]
        try:
            arrays = the_one(ArrayRecord, content_of(reply))
            answers[client] = Candidate(arrays, layout.weights(arrays), [client])
        except BadReplyError as problem:
            answers[client] = f"the reply of {client} {problem}"
    return answers


def same_weights(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether values are the same but for the rounding of another processor."""
    return bool(np.allclose(one, other, rtol=1e-3, atol=1e-6))
