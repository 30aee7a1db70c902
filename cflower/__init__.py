"""cflower: clustered federated learning as a Flower app and as a Flower Strategy.

>>> from cflower import ClusteredFL
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cflower.algorithm.auto import AutoCriterion
    from cflower.algorithm.criteria import NeverSplit, NormCriterion
    from cflower.algorithm.optimizers import ServerOptimizer
    from cflower.federation.client_names import name_clients
    from cflower.federation.observers import Observer
    from cflower.federation.permutation_mod import PermutationMod
    from cflower.federation.simulation import simulate
    from cflower.federation.strategy import ClusteredFL
    from cflower.runs.recorder import Recorder
    from cflower.runs.trackers import Tracker
    from cflower.saved.assign import assign
    from cflower.saved.export import export
    from cflower.saved.unlabelled import assign_unlabelled

    __version__: str
_HOMES = {
    "AutoCriterion": "cflower.algorithm.auto",
    "ClusteredFL": "cflower.federation.strategy",
    "NeverSplit": "cflower.algorithm.criteria",
    "NormCriterion": "cflower.algorithm.criteria",
    "Observer": "cflower.federation.observers",
    "PermutationMod": "cflower.federation.permutation_mod",
    "Recorder": "cflower.runs.recorder",
    "ServerOptimizer": "cflower.algorithm.optimizers",
    "Tracker": "cflower.runs.trackers",
    "assign": "cflower.saved.assign",
    "assign_unlabelled": "cflower.saved.unlabelled",
    "export": "cflower.saved.export",
    "name_clients": "cflower.federation.client_names",
    "simulate": "cflower.federation.simulation",
}
__all__ = [
    "AutoCriterion",
    "ClusteredFL",
    "NeverSplit",
    "NormCriterion",
    "Observer",
    "PermutationMod",
    "Recorder",
    "ServerOptimizer",
    "Tracker",
    "assign",
    "assign_unlabelled",
    "export",
    "name_clients",
    "simulate",
]


def __getattr__(name: str) -> Any:
    # Lazy, so that `import cflower.algorithm` needs neither Flower nor PyTorch.
    if name == "__version__":  # pyproject.toml has it: Flower refuses a dynamic one
        return version("cflower")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
