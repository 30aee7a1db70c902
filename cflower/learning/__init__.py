"""Models and their local training with PyTorch: the work of a client between two messages."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cflower.learning.models import MODELS, build_model
    from cflower.learning.settings import TrainingSettings
    from cflower.learning.training import evaluate, train

_HOMES = {
    "MODELS": "models",
    "TrainingSettings": "settings",
    "build_model": "models",
    "evaluate": "training",
    "train": "training",
}
__all__ = ["MODELS", "TrainingSettings", "build_model", "evaluate", "train"]


def __getattr__(name: str) -> Any:
    # Lazy, so that a config is checked before PyTorch is loaded.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
