"""One client of any Flower app, called in this process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from cflower.algorithm.state import REPORT, Ask, Reply, Role, Task
from cflower.algorithm.tree import Cluster
from cflower.algorithm.weights import Vector
from cflower.errors import ConfigError, FederationError
from cflower.messages.client_names import EVALUATE, PART, TASKS, app_has
from cflower.messages.failures import BadReplyError
from cflower.messages.flower import has_client_fn, identify
from cflower.messages.local_arrays import lacking
from cflower.messages.metrics import Metrics, plausible
from cflower.messages.older_api import as_records, instructions
from cflower.messages.replies import read_metrics, read_reply
from cflower.own_code import own_function
from cflower.runs.record import RunRecord

NODE_ID = 1
Content = TypeVar("Content")


def load_client_app(reference: str) -> ClientApp:
    """The ClientApp that ``package.module:name`` names; refused if it is none."""
    app = own_function("--app", reference)
    if not isinstance(app, ClientApp):
        raise ConfigError(f"{reference} is a {type(app).__name__}, but expected a ClientApp.")
    return app


@dataclass
class LocalClient:
    """A client that receives a run's models in messages like those of the run.

    Its methods raise `FederationError` if a reply cannot be used.
    """

    run: RunRecord
    app: ClientApp
    node_config: Mapping[str, Any]
    """Config of the node that the client would be on, such as ``partition-id``."""
    num_train: float = 0
    num_held_out: float = 0

    def update(self, cluster: Cluster) -> Vector:
        """Its update of a split cluster's model, as the run compared updates, shape (k,)."""
        layout, projection = self.run.layout, self.run.projection
        ask = Ask("newcomer", cluster.name, Role.PLACE, server_round=0)

        def read(message: Message, weighted_by: str) -> Reply:
            local = lacking(message, layout) or frozenset()  # as in the run: they stay on it
            return read_reply(message, ask, cluster.model, layout, projection, weighted_by, local)

        reply = self._ask("train", cluster, read)
        self.num_train = reply.num_examples
        assert reply.kept is not None
        return projection.seen(reply.kept)

    def evaluate(self, cluster: Cluster) -> Metrics:
        """Its metrics of a cluster's model; {} if its app does not evaluate."""
        if not app_has(self.app, EVALUATE, if_unknown=True):
            return {}
        measured = self._ask("evaluate", cluster, read_metrics)
        metrics, self.num_held_out = plausible([measured])[0]
        return metrics

    def _ask(
        self, task: Task, cluster: Cluster, read: Callable[[Message, str], Content]
    ) -> Content:
        """The reply to a message as `ClusteredFL` sends it."""
        identify(NODE_ID, NODE_ID)
        settings, run_config = self.run.settings, dict(self.run.config)
        weighted_by = settings["weighted-by-key"]
        about = {"server-round": cluster.split_round or 0, "cluster": cluster.name, PART: REPORT}
        config = ConfigRecord(settings.get(f"{task}-config", {}) | about)
        arrays = self.run.layout.record(cluster.model)
        content = RecordDict(
            {settings["arrayrecord-key"]: arrays, settings["configrecord-key"]: config}
        )
        older = has_client_fn(self.app)
        if older:
            content = instructions(task, content)
        context = Context(NODE_ID, NODE_ID, dict(self.node_config), RecordDict(), run_config)
        try:
            reply = self.app(Message(content, NODE_ID, TASKS[task].message_type), context)
            if older:
                reply.content = as_records(reply.content, self.run.layout, weighted_by)
            return read(reply, weighted_by)
        except BadReplyError as error:
            problem = str(error)
        except Exception as error:  # another app's code can fail in any way
            problem = f"is an error: {type(error).__name__}: {error}"
            if not self.node_config:
                problem += ". Its app may need a node config: --node-config"
        raise FederationError(
            f"The newcomer's reply to the {task} message with the model of cluster {cluster.name} "
            f"{problem}."
        )
