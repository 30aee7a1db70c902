"""A data set with clients and true groups of its own (docs/guide/own-model-and-data.md)."""

import numpy as np
import pandas as pd
from sklearn.datasets import load_iris


def gardens():
    """Irises of twelve gardens; six of them name two of the kinds the other way round."""
    rows, kinds = load_iris(return_X_y=True)
    table = pd.DataFrame(rows, columns=["sepal_l", "sepal_w", "petal_l", "petal_w"])
    table["garden"] = np.arange(150) % 12
    table["country"] = np.where(table["garden"] < 6, "here", "there")
    swapped = np.array([1, 0, 2])[kinds]
    table["kind"] = np.where(table["country"] == "here", kinds, swapped)
    return table
