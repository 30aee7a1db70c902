"""One client of any Flower app, called in this process."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Message
from flwr.clientapp import ClientApp

from cflower.algorithm.state import Ask, Role, Task
from cflower.algorithm.tree import Cluster
from cflower.algorithm.weights import Vector
from cflower.errors import ConfigError, FederationError
from cflower.messages.client_names import EVALUATE, has_function
from cflower.messages.failures import FailureRecord
from cflower.messages.flower import has_client_fn
from cflower.messages.grouped_log import GroupedLog
from cflower.messages.local_arrays import lacking
from cflower.messages.messenger import ClientMessenger, Read, Sent
from cflower.messages.metrics import ClientMetrics, Metrics, plausible
from cflower.messages.roll_call import RollCall
from cflower.own_code import own_function
from cflower.runs.record import RunRecord
from cflower.simulation.inline_grid import InlineGrid


def load_client_app(reference: str) -> ClientApp:
    """The ClientApp that ``package.module:name`` names; refused if it is none."""
    app = own_function("--app", reference)
    if not isinstance(app, ClientApp):
        raise ConfigError(f"{reference} is a {type(app).__name__}, but expected a ClientApp.")
    return app


class LocalClient:
    """A client that receives a run's models in messages like those of the run.

    ``node_config`` is that of the node that it would be on, such as ``partition-id``. Its methods
    raise `FederationError` if a reply cannot be used.
    """

    def __init__(self, run: RunRecord, app: ClientApp, node_config: Mapping[str, Any]) -> None:
        self.run, self._node_config = run, node_config
        self.sizes = 0, 0
        grid = InlineGrid(app, 1, run.config, node_config=node_config)
        roll_call = RollCall(asks=False)
        roll_call.update(grid)
        (self._name,) = roll_call.clients
        self._messenger = ClientMessenger(
            grid,
            math.inf,
            roll_call,
            run.layout,
            run.projection,
            FailureRecord(),
            weighted_by=run.settings["weighted-by-key"],
            arrays_key=run.settings["arrayrecord-key"],
            config_key=run.settings["configrecord-key"],
            older=has_client_fn(app),
        )

    def update(self, cluster: Cluster) -> Vector:
        """Its update of a split cluster's model, as the run compared updates, shape (k,)."""
        reply = self._ask("train", cluster, self._messenger.training)
        self.sizes = int(reply.num_examples), 0
        return self.run.projection.seen(reply.kept)

    def evaluate(self, cluster: Cluster) -> Metrics:
        """Its metrics of a cluster's model; {} if its app does not evaluate."""
        if not has_function(self._messenger.grid, EVALUATE, if_unknown=True):
            return {}
        measured = ClientMetrics.of(self._ask("evaluate", cluster, self._messenger.reply))
        self.sizes = self.sizes[0], int(measured.num_examples)
        return plausible({self._name: measured}, GroupedLog())[self._name].metrics

    def _ask(self, task: Task, cluster: Cluster, reader: Callable[[Sent, Message], Read]) -> Read:
        messenger = self._messenger
        ask = Ask(self._name, cluster.name, Role.PLACE, cluster.split_round or 0, task)
        config = ConfigRecord(self.run.settings.get(f"{task}-config", {}))
        messages = messenger.messages({ask: cluster.model}, config)
        replies = list(messenger.exchange(messages))
        messenger.local.keys = lacking(replies[0], self.run.layout) or frozenset()
        for _, reply in messenger.read(replies, reader):
            return reply
        problem = messenger.problems[self._name].text
        if replies[0].has_error() and not self._node_config:
            problem += ". Its app may need a node config: --node-config"
        raise FederationError(
            f"The newcomer's reply to the {task} message with the model of cluster {cluster.name} "
            f"{problem}."
        )
