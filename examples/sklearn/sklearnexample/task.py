"""A table of flats and their rents, and a linear regression of it."""

import numpy as np
from flwr.app import Array, ArrayRecord
from sklearn.linear_model import SGDRegressor

COLUMNS = ("area", "rooms", "age", "distance to the centre")
RENTS = np.array(
    [
        [4.0, 1.0, -1.0, -3.0],  # cities: nearness counts
        [2.0, 3.0, 1.0, 2.0],  # holiday resorts: old and far out is what is sought
    ]
)
"""What one standard deviation of each column adds to the rent, in 100 a month, by region."""


def load_data(partition_id: int, num_partitions: int) -> tuple[np.ndarray, ...]:
    """One agency's 200 flats, standardised, and their rents; the last 50 are held out."""
    rng = np.random.default_rng(partition_id)
    flats = rng.normal(size=(200, len(COLUMNS)))
    region = partition_id * len(RENTS) // num_partitions
    rents = 10 + flats @ RENTS[region] + rng.normal(size=200)
    return flats[:150], rents[:150], flats[150:], rents[150:]


def arrays_of(model: SGDRegressor) -> ArrayRecord:
    """The model as the server sees it."""
    return ArrayRecord({"coef": Array(model.coef_), "intercept": Array(model.intercept_)})


def model_of(arrays: ArrayRecord, learning_rate: float) -> SGDRegressor:
    """The model as scikit-learn has it."""
    model = SGDRegressor(learning_rate="constant", eta0=learning_rate, penalty=None, random_state=0)
    model.coef_ = arrays["coef"].numpy().copy()
    model.intercept_ = arrays["intercept"].numpy().copy()
    return model


def first_arrays() -> ArrayRecord:
    """Zeros."""
    return ArrayRecord({"coef": Array(np.zeros(len(COLUMNS))), "intercept": Array(np.zeros(1))})
