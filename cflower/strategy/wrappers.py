"""Flower's strategies that wrap another one, around `ClusteredFL`.

They bring a ``start`` of their own, know one model, and add noise to what ``aggregate_train``
returns (central differential privacy).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from logging import WARNING
from traceback import walk_stack
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord
from flwr.supercore import log

from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import ParameterTree
from cflower.algorithm.weights import Weights
from cflower.errors import ConfigError
from cflower.messages.layout import Layout
from cflower.ordering import in_order, listed

OLDER_WORKFLOW = (
    "ClusteredFL cannot run in ServerAppComponents (server_fn), which is Flower's older API: call "
    "ClusteredFL.start in a function with @app.main(). Nor can it run under SecAggPlusWorkflow: "
    "secure aggregation shows the server only sums of updates, and clusters are detected by "
    "comparing single ones. Against a curious server there are LocalDpMod and "
    "cflower.PermutationMod."
)

SECRET_SUMS = (
    "The ClientApp has the mod {}, with which clients send shares of a sum instead of updates, but "
    "clusters are detected by comparing single updates: take the mod off. Against a curious server "
    "there are LocalDpMod and cflower.PermutationMod."
)
NOT_CLIPPED = (
    "Client(s) %s sent updates longer than the clipping norm of the wrapper for differential "
    "privacy, so its guarantee does not hold. Give every ClientApp Flower's mod: "
    "@app.train(mods=[fixedclipping_mod]), or adaptiveclipping_mod for adaptive clipping."
)
CLIP_ROUNDING = 1e-3


@dataclass
class Wrapper:
    """A wrapper as far as its calls show it."""

    config: ConfigRecord = field(default_factory=ConfigRecord)
    """The config of the last round's messages, which may name the clipping norm."""
    returned: ArrayRecord | None = None
    """The last result of ``aggregate_train``."""
    warned: bool = False

    def tree_with_noise(
        self, noisy: ArrayRecord, tree: ParameterTree, layout: Layout
    ) -> ParameterTree:
        """The tree with the noise on the one model that a wrapper sees added to every leaf's model.

        Noise that hides one client among n has to be n / |c| times as long among |c|. The leaves
        get the same noise: clients of different leaves can remove it by comparing their models.
        """
        if self.returned is None or noisy is self.returned:
            return tree
        after, before = layout.weights(noisy), layout.weights(self.returned)
        leaves = []
        for leaf in tree.leaves:
            factor = len(tree.clients) / len(leaf.members)
            trained = leaf.model.trained + (after.trained - before.trained) * factor
            carried = leaf.model.carried + (after.carried - before.carried)
            model = Weights(trained.astype(leaf.model.trained.dtype), carried)
            leaves.append(replace(leaf, model=layout.as_sent(model)))
        return tree.update(*leaves)

    def warn_not_clipped(self, state: CFLState, server_round: int) -> None:
        longest = float(str(self.config.get("clipping_norm", "inf"))) * (1 + CLIP_ROUNDING)
        new = {name: one for name, one in state.known.items() if one.server_round == server_round}
        long = [name for name, update in new.items() if update.norm > longest]
        if long and not self.warned:
            self.warned = True
            log(WARNING, NOT_CLIPPED, listed(in_order(long)))


def refuse_older_workflow(strategy: object, client_manager: object) -> NoReturn:
    """Raise a ConfigError: Flower's older workflows, such as SecAgg+, begin with this call."""
    raise ConfigError(OLDER_WORKFLOW)


def refuse_secure_aggregation(mods: Iterable[Any]) -> None:
    """Raise a ConfigError if one of the mods on the clients' training is Flower's for such sums."""
    for mod in mods:
        name = getattr(mod, "__name__", "")
        if mod.__module__.startswith("flwr.") and name.startswith("secagg"):
            raise ConfigError(SECRET_SUMS.format(name))


def refuse_unfit_wrappers(aggregation: object) -> None:
    """Raise a ConfigError if a wrapper for differential privacy that does not fit is the caller."""
    for frame, _ in walk_stack(None):
        wrapper = type(frame.f_locals.get("self")).__name__
        if wrapper.startswith("DifferentialPrivacyServerSide"):
            raise ConfigError(
                f"{wrapper} cannot be put around ClusteredFL: it clips every update as if all "
                "clients had trained one model, but clusters have models of their own. Use "
                f"{wrapper.replace('Server', 'Client', 1)} with Flower's clipping mod in the "
                "ClientApp."
            )
        if wrapper.startswith("DifferentialPrivacy") and aggregation != "fedavg":
            raise ConfigError(
                f"{wrapper} cannot be put around ClusteredFL with aggregation={aggregation!r}: its "
                "noise hides a client in a mean, not in a median or the like. Use 'fedavg'."
            )
