"""One client of any Flower app, asked in this process and by nobody else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from cflower.algorithm.difference import Vector
from cflower.algorithm.tree import Cluster
from cflower.errors import ConfigError, FederationError
from cflower.messages.client_names import EVALUATE, functions_of
from cflower.messages.replies import BadReplyError, Metrics, read_metrics, read_train_reply
from cflower.own_code import own_function
from cflower.runs.stored_run import StoredRun
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid


def load_client_app(reference: str) -> ClientApp:
    """The ClientApp that ``package.module:name`` names, also in the folder that one is in.

    Raises
    ------
    ConfigError
        If there is none.
    """
    app = own_function("--app", reference)
    if not isinstance(app, ClientApp):
        raise ConfigError(f"{reference} is a {type(app).__name__}, but expected a ClientApp.")
    return app


@dataclass(frozen=True)
class LocalClient:
    """A client that gets a run's models in messages like those of the run.

    Parameters
    ----------
    run : StoredRun
        Gives models, run config, the messages' configs and the names of their records.
    app : ClientApp
    node_config : mapping
        Of the node that it would be on, such as ``partition-id``.

    Attributes
    ----------
    num_examples : dict of str to float
        How many examples the client told, by the kind of message.
    """

    run: StoredRun
    app: ClientApp
    node_config: Mapping[str, Any]
    num_examples: dict[str, float] = field(default_factory=dict)

    def update(self, cluster: Cluster) -> Vector:
        """Its update of a fork's model in the round of the split, as it was compared.

        Raises
        ------
        FederationError
            If its reply cannot be used.
        """
        reply, weighted_by = self._reply(MessageType.TRAIN, cluster), self._key("weighted-by")
        try:
            answer = read_train_reply(
                reply, self.run.layout, self.run.projection, weighted_by, cluster.model
            )
        except BadReplyError as problem:
            raise refused(MessageType.TRAIN, cluster, problem) from None
        self.num_examples[MessageType.TRAIN] = answer.measured.num_examples
        assert answer.kept is not None
        return self.run.projection.seen(answer.kept)

    def measured(self, cluster: Cluster) -> Metrics:
        """What it measures of a cluster's model; nothing if its app evaluates nothing.

        Raises
        ------
        FederationError
            If its reply cannot be used.
        """
        if EVALUATE not in (functions_of(InlineGrid(self.app, 1, {})) or ()):
            return {}
        reply = self._reply(MessageType.EVALUATE, cluster)
        try:
            metrics, weight = read_metrics(reply, self._key("weighted-by"))
        except BadReplyError as problem:
            raise refused(MessageType.EVALUATE, cluster, problem) from None
        self.num_examples[MessageType.EVALUATE] = weight
        return metrics

    def _key(self, kind: str) -> str:
        return str(self.run.settings[f"{kind}-key"])

    def _reply(self, kind: str, cluster: Cluster) -> Message:
        """The answer to a message as `ClusteredFL` sends it."""
        grid = InlineGrid(self._answer, 1, self.run.config)
        told = {"server-round": cluster.split_round or 0, "cluster": cluster.name}
        config = ConfigRecord(self.run.settings.get(f"{kind}-config", {}) | told)
        arrays = self.run.layout.record(cluster.model)
        records = RecordDict({self._key("arrayrecord"): arrays, self._key("configrecord"): config})
        (reply,) = grid.send_and_receive([Message(records, FIRST_NODE_ID, kind)])
        return reply

    def _answer(self, message: Message, context: Context) -> Message:
        node = dict(self.node_config)
        return self.app(
            message,
            Context(context.run_id, context.node_id, node, context.state, context.run_config),
        )


def refused(kind: str, cluster: Cluster, problem: BadReplyError) -> FederationError:
    """Why a newcomer cannot be assigned."""
    return FederationError(
        f"The newcomer's reply to the {kind} message with the model of cluster {cluster.name} "
        f"{problem}."
    )
