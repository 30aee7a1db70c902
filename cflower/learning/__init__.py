"""Models and their local training with PyTorch: what a client does between two messages."""

from cflower.learning.models import MODELS, build_model
from cflower.learning.training import TrainingSettings, confusion_matrix, evaluate, train

__all__ = [
    "MODELS",
    "TrainingSettings",
    "build_model",
    "confusion_matrix",
    "evaluate",
    "train",
]
