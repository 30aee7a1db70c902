"""IFCA: Ghosh, Chung, Yin, Ramchandran, "An Efficient Framework for Clustered Federated Learning",
NeurIPS 2020, arXiv 2006.04088; model averaging (Algorithm 1, option II).

The server keeps k models, whose number is given. Before each round every client takes the one with
the least loss on its own training examples, and trains that; each model becomes the mean of what
was trained from it. A model that no client takes stays as it is.

Differences: the models go to the clients one after another, in evaluations. With sampling, all
clients that are there choose, and each model's clients are sampled apart.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord

from cflower.algorithm.criteria import NeverSplit
from cflower.algorithm.state import Ask, CFLState, Role
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree
from cflower.messages.client_names import TRAINED_ON
from cflower.ordering import in_order
from cflower.settings import require
from cflower.strategy.clustered_fl import ClusteredFL
from cflower.strategy.run import Call, Run


class IFCA(ClusteredFL):
    """A given number of models, of which every client trains the best for it.

    ``first_models`` are the k first models, which must differ; they may be set until the start. The
    clients' ``evaluate`` function must send a ``loss``, on their training examples where ``part``
    in the config is ``"train"``. The settings are those of `ClusteredFL`.
    """

    def __init__(self, first_models: Sequence[ArrayRecord] = (), **settings: Any) -> None:
        self.first_models = list(first_models)
        fixed = {"trial_rounds": 0, "moving": False, "personal": False, "weighting": "uniform"}
        super().__init__(NeverSplit(), **{**settings, **fixed})

    def _begin(self, call: Call) -> Run:
        """A run with all models below the root, the first of them for all clients."""
        number = len(self.first_models)
        require(number > 1, f"Got {number} first models for IFCA, but expected two or more.")
        run = super()._begin(call)
        if run.before.server_round:  # it goes on
            return run
        members, models = run.state.tree.clients, map(run.layout.weights, self.first_models)
        first, *others = (
            Cluster(f"{ROOT}.{j}", members if j == 0 else (), model)
            for j, model in enumerate(models)
        )
        names = tuple(cluster.name for cluster in (first, *others))
        root = Cluster(ROOT, members, first.model, children=names)
        run.state = CFLState(ParameterTree({c.name: c for c in (root, first, *others)}))
        return run

    def _play(self, run: Run, server_round: int) -> bool:
        """The first choice, a round, and the choice for the next one."""
        if server_round == run.before.server_round + 1:
            self._choose(run, server_round)
        ends = super()._play(run, server_round)
        self._choose(run, server_round)
        return ends

    @staticmethod
    def _choose(run: Run, server_round: int) -> None:
        """Let each client evaluate all models, and put it where its loss is the least."""
        tree, losses = run.state.tree, dict[str, dict[str, float]]()
        for end in tree.ends:
            ask = Ask("", end.name, Role.OWN, server_round, "evaluate", TRAINED_ON)
            asks = [ask._replace(client=client) for client in in_order(run.messenger.free)]
            config = run.call.evaluate_config
            replies = run.messenger.exchange(run.messages(asks, config))
            for answer in run.messenger.answers(replies):
                if (loss := answer.metrics.get("loss")) is not None:
                    losses.setdefault(answer.client, {})[end.name] = float(loss)
        own = {client: tree.leaf_of(client).name for client in tree.clients}
        own |= {client: min(loss_of, key=loss_of.__getitem__) for client, loss_of in losses.items()}
        of = {end.name: tuple(c for c in tree.clients if own[c] == end.name) for end in tree.ends}
        ends = (replace(end, members=of[end.name]) for end in tree.ends)
        run.state = replace(run.state, tree=tree.update(*ends))
