"""SCAFFOLD's server: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", ICML 2020, arXiv 1910.06378 (Algorithm 1); `cflower.clients.methods` has the clients.

Beside the model the server keeps the control variate c. A message to train has both, a reply the
trained model and by how much the client's c_i changes; c moves by the sum of these changes, divided
by the number of all clients. c has the arrays of the model, with zeros for those that no client
trains.

Differences: a change counts if its reply does, also where that is bounded or late. A round's
changes are kept in memory until it ends.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from cflower.algorithm.weights import Vector, Weights
from cflower.messages.arrays import copy_of
from cflower.messages.client_names import CONTROL
from cflower.messages.failures import BadReplyError
from cflower.ordering import in_order, without
from cflower.strategy.clustered_fl import ClusteredFL
from cflower.strategy.run import Call, Run


class SCAFFOLD(ClusteredFL):
    """One model, and a control variate that keeps the clients' trainings from drifting apart.

    The settings are those of `ClusteredFL`; in the mean every client counts alike. The clients'
    ``train`` function must know the method.
    """

    def __post_init__(self) -> None:
        self.weighting = "uniform"
        super().__post_init__()

    def _begin(self, call: Call) -> Run:
        run = super()._begin(call)
        self._control: Vector = np.zeros(run.layout.num_trained, run.layout.dtype)
        return run

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the round, each with c as a second record of arrays."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        control = self.layout.record(Weights(self._control, np.zeros(self.layout.num_carried)))
        for message in messages:
            message.content[CONTROL] = copy_of(control)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate the models, then move c by the changes in the replies that count."""
        changes = dict[str, Vector]()
        result = super().aggregate_train(server_round, self._apart(replies, changes))
        assert self._run is not None
        training = without(dict.fromkeys(self.tree.clients), self._run.roll_call.only_evaluating)
        for client in in_order(changes.keys() & self._run.report.measured):
            self._control = self._control + changes[client] / len(training)
        return result

    def _apart(self, replies: Iterable[Message], changes: dict[str, Vector]) -> Iterator[Message]:
        """The replies without their changes of c_i, as `ClusteredFL` reads them."""
        for reply in replies:
            sent = reply.content.get(CONTROL) if reply.has_content() else None
            if self._run is not None and isinstance(sent, ArrayRecord):
                layout, sender = self.layout, reply.metadata.src_node_id
                try:
                    change = layout.weights(sent, layout.keys - set(sent)).trained
                except BadReplyError:
                    pass  # the reply keeps it, and is set aside for a second model
                else:
                    del reply.content[CONTROL]
                    changes[self._run.roll_call.name_of(sender)] = change
            yield reply
