"""The model and the data sets of docs/guide/own-model-and-data.md."""

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes, load_iris, load_wine
from torch import nn


def small_net(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A convolution and a linear layer, for images."""
    channels = input_shape[0]  # of images: (channels, height, width)
    return nn.Sequential(
        nn.Conv2d(channels, 8, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(num_classes),
    )


def wines():
    """Inputs and labels, two arrays."""
    return load_wine(return_X_y=True)


def gardens():
    """A table: irises of twelve gardens; six of them name two of the kinds the other way round."""
    rows, kinds = load_iris(return_X_y=True)
    table = pd.DataFrame(rows, columns=["sepal_l", "sepal_w", "petal_l", "petal_w"])
    table["garden"] = np.arange(150) % 12
    table["country"] = np.where(table["garden"] < 6, "here", "there")
    swapped = np.array([1, 0, 2])[kinds]
    table["kind"] = np.where(table["country"] == "here", kinds, swapped)
    return table


def clinics():
    """The progress of a disease at six clinics; three of them note 350 minus the number."""
    patients = load_diabetes(as_frame=True, scaled=False).frame.astype(float)
    number = np.arange(len(patients)) % 6
    downwards = number >= 3
    target = patients["target"].where(~downwards, 350 - patients["target"])
    names = {"clinic": [f"clinic {n}" for n in number], "scale": np.where(downwards, "down", "up")}
    return patients.assign(target=target, **names)
