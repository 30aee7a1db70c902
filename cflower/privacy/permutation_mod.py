"""Permuted weights (Algorithm 5): the mod for the ClientApp, and the server's questions."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.errors import ConfigError, FederationError
from cflower.messages.arrays import record_of, values_of
from cflower.messages.claims import COMMITMENT
from cflower.messages.client_names import FACTS, ROLL_CALL
from cflower.messages.exchange import Exchange
from cflower.messages.failures import BadReplyError
from cflower.messages.layout import UNTRAINED, Layout
from cflower.messages.replies import content_of, the_one
from cflower.messages.roll_call import RollCall
from cflower.ordering import line
from cflower.privacy.permutation import Arrays, commitment, permuted, read_seed, turn_back

Rearrange = Callable[[Arrays, bytes, Sequence[str]], dict[str, Any]]
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


class PermutationMod:
    """A Flower mod: the ClientApp inside works on θ, everything outside sees Pθ.

    It acts on every message if the node has a seed, see `seed_of`, and otherwise does nothing. In
    a roll call it adds the seed's commitment, or the problem with the seed.

    It must be the first mod, so that the others, such as Flower's for clipping and local
    differential privacy, get the weights of the app: ``ClientApp(mods=[PermutationMod(), ...])``.

    Parameters
    ----------
    untrained : sequence of str
        As the server's, see `Layout.of`.
    """

    def __init__(self, untrained: Sequence[str] = UNTRAINED) -> None:
        self.untrained = tuple(untrained)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Turn received models back, and permute sent ones."""
        if message.metadata.message_type == ROLL_CALL:
            reply = call_next(message, context)
            if not reply.has_error() and FACTS in reply.content:
                reply.content.config_records[FACTS].update(seed_facts(context))
            return reply
        seed = seed_of(context)
        if seed is None:
            return call_next(message, context)
        message.content = self._each(message.content, turn_back, seed)
        reply = call_next(message, context)
        if not reply.has_error():
            reply.content = self._each(reply.content, permuted, seed)
        return reply

    def _each(self, content: RecordDict, rearrange: Rearrange, seed: bytes) -> RecordDict:
        """A copy of the content with every model rearranged."""
        records = dict(content.items())
        for name, record in content.array_records.items():
            arrays = {key: values_of(array) for key, array in record.items()}
            records[name] = record_of(rearrange(arrays, seed, self.untrained))
        return RecordDict(records)


def seed_facts(context: Context) -> dict[str, str]:
    """The commitment to a client's seed, or the problem with it; empty without a seed."""
    try:
        seed = seed_of(context)
    except ConfigError as problem:
        return {"problem": str(problem)}
    return {COMMITMENT: commitment(seed)} if seed else {}


def seed_of(context: Context) -> bytes | None:
    """A client's secret; None if it has none, `ConfigError` if its file cannot be read.

    ``seed-file`` in the node config is its file. Only a simulated client, without a ``data-path``,
    takes the path from the run config: a file that the server names may not be secret to it.
    """
    node = context.node_config
    simulated = "seed-file" not in node and "data-path" not in node
    path = (context.run_config if simulated else node).get("seed-file")
    return read_seed(str(path)) if path else None


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


def ask_first_model(grid: Grid, roll_call: RollCall, layout: Layout) -> ArrayRecord:
    """The initial model of a run with permuted weights, from the first client that sends one.

    The server must not make it: the permutation follows from a model and its permuted version.
    `FederationError` if no client sends a model that fits the layout, which no permutation changes.
    """
    reason = "no client is connected"
    for client in roll_call.clients:
        node, seconds = roll_call.nodes[client], roll_call.timeout
        message = Message(RecordDict(), node, FIRST_MODEL, group_id="first-model")
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
