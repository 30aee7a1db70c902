"""The model of IFCA's experiment on rotated MNIST."""

from math import prod

from torch import nn


def one_hidden_layer(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """784 inputs, 200 hidden units, 10 logits, for images of 28 x 28 pixels."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(input_shape), 200), nn.ReLU(), nn.Linear(200, num_classes)
    )
