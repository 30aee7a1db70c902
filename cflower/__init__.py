"""cflower: clustered federated learning as a Flower app and as a Flower Strategy.

>>> from cflower import ClusteredFL
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cflower.federation.privacy import PermutationMod
    from cflower.federation.strategy import ClusteredFL

__all__ = ["ClusteredFL", "PermutationMod"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Lazy, so that `import cflower.algorithm` needs neither Flower nor PyTorch.
    if name == "ClusteredFL":
        from cflower.federation.strategy import ClusteredFL

        return ClusteredFL
    if name == "PermutationMod":
        from cflower.federation.privacy import PermutationMod

        return PermutationMod
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
