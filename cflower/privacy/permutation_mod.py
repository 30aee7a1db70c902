"""Weights that travel permuted (Algorithm 5): the ClientApp mod, and what the server asks for."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import WARNING
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.errors import ConfigError, FederationError
from cflower.messages.arrays import record_of, values_of
from cflower.messages.claims import line
from cflower.messages.client_names import FACTS, ROLL_CALL
from cflower.messages.exchange import Exchange
from cflower.messages.layout import UNTRAINED, BadArraysError, Layout
from cflower.messages.replies import first_line
from cflower.messages.roll_call import RollCall
from cflower.privacy.permutation import Arrays, commitment, permuted, read_seed, turn_back

Rearrange = Callable[[Arrays, bytes, Sequence[str]], dict[str, Any]]
FIRST_MODEL = "query.first_model"
COMMITMENT = "permutation"
"""Key of the `FACTS`: what the client's seed commits to; a client without it sends no permuted
weights."""


class PermutationMod:
    """A Flower mod: the ClientApp inside works on θ, everything outside sees Pθ.

    It acts on every message where the node has a seed, see `seed_of`, and does nothing where it
    has none. In a roll call it adds the seed's commitment, or says why there is no seed.

    Goes first in the list of mods, so that the others, such as Flower's for clipping and local
    differential privacy, see the weights as the app does:
    ``ClientApp(mods=[PermutationMod(), ...])``.

    Parameters
    ----------
    untrained : sequence of str
        As the server's, see `Layout.of`.
    """

    def __init__(self, untrained: Sequence[str] = UNTRAINED) -> None:
        self.untrained = tuple(untrained)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Turn back what comes in, permute what goes out."""
        facts: dict[str, str] = {}
        try:
            seed = seed_of(context)
        except ConfigError as problem:
            if message.metadata.message_type != ROLL_CALL:
                raise
            seed, facts = None, {"problem": str(problem)}
        if seed is not None:
            facts = {COMMITMENT: commitment(seed)}
            message.content = self._each(message.content, turn_back, seed)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        if seed is not None:
            reply.content = self._each(reply.content, permuted, seed)
        if message.metadata.message_type == ROLL_CALL and FACTS in reply.content:
            reply.content.config_records[FACTS].update(facts)
        return reply

    def _each(self, content: RecordDict, rearrange: Rearrange, seed: bytes) -> RecordDict:
        """The content with every model rearranged; the one given is not changed."""
        records = dict(content.items())
        for name, record in content.array_records.items():
            arrays = {key: values_of(array) for key, array in record.items()}
            records[name] = record_of(rearrange(arrays, seed, self.untrained))
        return RecordDict(records)


def seed_of(context: Context) -> bytes | None:
    """A client's secret; None if it has none.

    ``seed-file`` in the node config names its file. Only a simulated client, which has no
    ``data-path`` of its own either, takes the path from the run config instead: what the server
    names there need not be secret to it.

    Raises
    ------
    ConfigError
        If there is no seed to be read there.
    """
    node, path = context.node_config, context.node_config.get("seed-file")
    if path is None and "data-path" not in node:
        path = context.run_config.get("seed-file")
    return read_seed(str(path)) if path else None


class SeedAgreement(NamedTuple):
    """What the clients of a run must have told of their seeds."""

    permuted: bool
    """Whether weights travel permuted."""
    commitment: str
    """Of the seed that most clients have; empty without permutation, or if none has any."""

    @classmethod
    def among(cls, facts: Iterable[Mapping[str, Any]], *, permuted: bool) -> "SeedAgreement":
        """The agreement that most clients are in; among equals the first of them."""
        told = [str(one[COMMITMENT]) for one in facts if permuted and COMMITMENT in one]
        return cls(permuted, Counter(told).most_common(1)[0][0] if told else "")

    def problem_with(self, facts: Mapping[str, Any]) -> str:
        """Why a client with these facts cannot take part; empty if it can."""
        told = str(facts.get(COMMITMENT, ""))
        if told and not self.permuted:
            return (
                "its seed-file makes its weights travel permuted, but this run has privacy = "
                "'none'; set privacy = 'permutation'"
            )
        if self.permuted and not told:
            return (
                "privacy = 'permutation' needs a secret that all clients share, and it has none; "
                "name its file as seed-file in the node config, or for a simulation in the run "
                "config"
            )
        if self.permuted and told != self.commitment:
            return "its seed differs from that of the others; give all clients the same seed file"
        return ""


def ask_first_model(grid: Grid, roll_call: RollCall, layout: Layout) -> ArrayRecord:
    """The model that a run with permuted weights begins with, from the first client that has one.

    The server must not make it: who knows a model and sees it permuted knows the permutation.

    Parameters
    ----------
    grid : Grid
    roll_call : RollCall
    layout : Layout
        Of the run's model: no permutation changes which arrays there are, and their shapes.

    Raises
    ------
    FederationError
        If no client gives one.
    """
    reason = "nobody is there"
    for client in roll_call.clients:
        message = Message(
            RecordDict(),
            roll_call.nodes[client],
            FIRST_MODEL,
            ttl=roll_call.timeout,
            group_id="first-model",
        )
        reason = f"{client} did not answer within {roll_call.timeout:g} s"
        for reply in Exchange(grid, [message], roll_call.timeout):
            if reply.has_error():
                reason = f"{client} answered {first_line(reply.error.reason)}"
            elif len(reply.content.array_records) != 1:
                reason = f"{client} sent {len(reply.content.array_records)} models instead of one"
            else:
                arrays = next(iter(reply.content.array_records.values()))
                try:
                    layout.weights(arrays)
                    return arrays
                except BadArraysError as problem:
                    reason = f"the model of {client} {problem}"
        log(WARNING, "No first model: %s.", line(reason))
    raise FederationError(f"No client gave a first model; the last one asked: {line(reason)}.")
