"""cflower: clustered federated learning as a Flower app and as a Flower Strategy.

>>> from cflower import ClusteredFL
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cflower.exporting import export
    from cflower.federation.strategy import ClusteredFL
    from cflower.newcomer import assign

__all__ = ["ClusteredFL", "assign", "export"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Lazy, so that `import cflower.algorithm` needs neither Flower nor PyTorch.
    if name == "ClusteredFL":
        from cflower.federation.strategy import ClusteredFL

        return ClusteredFL
    if name == "assign":
        from cflower.newcomer import assign

        return assign
    if name == "export":
        from cflower.exporting import export

        return export
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
