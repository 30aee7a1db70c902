"""cflower: clustered federated learning as a Flower app and as a Flower Strategy.

>>> from cflower import ClusteredFL
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cflower.exporting import export
    from cflower.federation.privacy import PermutationMod
    from cflower.federation.simulation import simulate
    from cflower.federation.strategy import ClusteredFL
    from cflower.newcomer import assign

__all__ = ["ClusteredFL", "PermutationMod", "assign", "export", "simulate"]
__version__ = "0.1.0"
_ROOMS = {
    "ClusteredFL": "cflower.federation.strategy",
    "PermutationMod": "cflower.federation.privacy",
    "assign": "cflower.newcomer",
    "export": "cflower.exporting",
    "simulate": "cflower.federation.simulation",
}


def __getattr__(name: str) -> Any:
    # Lazy, so that `import cflower.algorithm` needs neither Flower nor PyTorch.
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
