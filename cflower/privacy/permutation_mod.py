"""Permuted weights (Algorithm 5): the mod for the ClientApp."""

from collections.abc import Sequence

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from cflower.errors import ConfigError
from cflower.messages.arrays import record_of, records_in, values_of
from cflower.messages.client_names import COMMITMENT, FACTS, ROLL_CALL
from cflower.messages.layout import UNTRAINED
from cflower.privacy.permutation import commitment, permuted, read_seed


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

    adds_no_noise = True

    def __init__(self, untrained: Sequence[str] = UNTRAINED) -> None:
        self.untrained = tuple(untrained)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Turn received models back, and permute sent ones."""
        if message.metadata.message_type == ROLL_CALL:
            reply = call_next(message, context)
            if not reply.has_error() and FACTS in reply.content:
                facts = records_in(reply.content, ConfigRecord)[FACTS]
                try:
                    if seed := seed_of(context):
                        facts[COMMITMENT] = commitment(seed)
                except ConfigError as problem:
                    facts["problem"] = str(problem)
            return reply
        seed = seed_of(context)
        if seed is None:
            return call_next(message, context)
        message.content = self._each(message.content, seed, back=True)
        reply = call_next(message, context)
        if not reply.has_error():
            reply.content = self._each(reply.content, seed, back=False)
        return reply

    def _each(self, content: RecordDict, seed: bytes, *, back: bool) -> RecordDict:
        """A copy of the content with every model permuted, or turned back."""
        records = dict(content.items())
        for name, record in records_in(content, ArrayRecord).items():
            arrays = {key: values_of(array) for key, array in record.items()}
            records[name] = record_of(permuted(arrays, seed, self.untrained, back=back))
        return RecordDict(records)


def seed_of(context: Context) -> bytes | None:
    """A client's secret; None if it has none, `ConfigError` if its file cannot be read.

    ``seed-file`` in the node config is its file. Only a simulated client, without a ``data-path``,
    takes the path from the run config: a file that the server names may not be secret to it.
    """
    node = context.node_config
    simulated = "seed-file" not in node and "data-path" not in node
    path = (context.run_config if simulated else node).get("seed-file")
    return read_seed(str(path)) if path else None
