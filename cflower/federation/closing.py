"""The closing evaluation: how every client is served when the run ends."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flwr.app import ConfigRecord, MessageType, RecordDict
from flwr.serverapp import Grid

from cflower.algorithm.cfl_round import CFLState
from cflower.algorithm.tree import Cluster
from cflower.errors import FederationError
from cflower.federation.conduct import Answers
from cflower.federation.layout import Layout
from cflower.federation.post import Measured, Post
from cflower.federation.reports import ClientResult
from cflower.federation.roll_call import FACTS


@dataclass
class Closing:
    """The exchanges of a closing evaluation, and what came of them.

    Attributes
    ----------
    contents : dict of str to RecordDict
        What each client answered under its own cluster's model.
    problems : dict of str to str
        Why a client's reply was set aside, or that it did not answer.
    """

    grid: Grid
    post: Post
    layout: Layout
    config: ConfigRecord
    server_round: int
    timeout: float

    def __post_init__(self) -> None:
        self.contents: dict[str, RecordDict] = {}
        self.problems: dict[str, str] = {}

    def evaluate(self, state: CFLState, clients: Iterable[str]) -> dict[str, ClientResult]:
        """Every client under its own cluster's model and under θ*_root.

        Raises
        ------
        FederationError
            If the simulation engine broke down.
        """
        tree, known = state.tree, state.known
        there = [client for client in clients if client in tree.root.members]
        own = federated = self._ask(there, tree.leaf_of)
        if tree.root.split_round is not None:
            federated = self._ask(there, lambda _: tree.root)
        self.contents = own.contents
        return {
            client: ClientResult(
                cluster=tree.leaf_of(client).name,
                num_examples=known[client].num_examples if client in known else None,
                own=metrics,
                federated=federated.metrics[client],
                facts=dict(own.contents[client].config_records.get(FACTS, {})),
            )
            for client, metrics in own.metrics.items()
            if client in federated.metrics
        }

    def _ask(self, clients: Iterable[str], cluster_of: Callable[[str], Cluster]) -> Measured:
        assigned = {client: cluster_of(client) for client in clients}
        kind = MessageType.EVALUATE
        messages = self.post.messages(assigned, self.layout, kind, self.config, self.server_round)
        measured = self.post.measured(self.post.exchange(self.grid, messages, self.timeout))
        answers = Answers(measured.metrics.keys(), self.post.take())
        if died := answers.worker_died:
            raise FederationError(f"The run stops in the closing evaluation: {died}.")
        self.problems |= {name: problem.text for name, problem in answers.problems.items()}
        return measured
