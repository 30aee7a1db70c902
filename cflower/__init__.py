"""cflower: clustered federated learning as a Flower app and as a Flower Strategy.

>>> from cflower import ClusteredFL
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cflower.algorithm.criteria import NeverSplit as NeverSplit
    from cflower.algorithm.norm_criterion import NormCriterion as NormCriterion
    from cflower.algorithm.optimizers import ServerOptimizer as ServerOptimizer
    from cflower.auto.criterion import AutoCriterion as AutoCriterion
    from cflower.exporting.export import export as export
    from cflower.messages.client_names import name_clients as name_clients
    from cflower.newcomers.assign import assign as assign
    from cflower.privacy.permutation_mod import PermutationMod as PermutationMod
    from cflower.recording.recorder import Recorder as Recorder
    from cflower.recording.trackers import Tracker as Tracker
    from cflower.simulation.simulate import simulate as simulate
    from cflower.strategy.advised import Advised as Advised
    from cflower.strategy.clustered_fl import ClusteredFL as ClusteredFL
    from cflower.strategy.observers import Observer as Observer

    __version__: str
_HOMES = {
    "Advised": "cflower.strategy.advised",
    "AutoCriterion": "cflower.auto.criterion",
    "ClusteredFL": "cflower.strategy.clustered_fl",
    "NeverSplit": "cflower.algorithm.criteria",
    "NormCriterion": "cflower.algorithm.norm_criterion",
    "Observer": "cflower.strategy.observers",
    "PermutationMod": "cflower.privacy.permutation_mod",
    "Recorder": "cflower.recording.recorder",
    "ServerOptimizer": "cflower.algorithm.optimizers",
    "Tracker": "cflower.recording.trackers",
    "assign": "cflower.newcomers.assign",
    "export": "cflower.exporting.export",
    "name_clients": "cflower.messages.client_names",
    "simulate": "cflower.simulation.simulate",
}
__all__ = list(_HOMES)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    # Lazy, so that `import cflower.algorithm` needs neither Flower nor PyTorch.
    if name == "__version__":  # pyproject.toml has it: Flower refuses a dynamic one
        return import_module("importlib.metadata").version("cflower")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
