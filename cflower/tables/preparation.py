"""The columns of a table as the inputs of a model, by scikit-learn, and a model of a table.

This file needs nothing of cflower: an exported model comes with a copy of it. A preparation is
JSON:

- ``numbers``: name of the column -> its mean and its standard deviation over all clients. Missing
  numbers become the mean; with ``scaled``, all become their distance to it in deviations, at most
  `FARTHEST`.
- ``categories``: name of the column -> its values. Each value becomes an input, 1 where a row has
  it and 0 elsewhere; a missing or another value has 0 in all of them.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

FARTHEST = 10.0
"""Deviations from the mean at which a scaled number ends. Else a 1 among hundreds of zeros, or a
value of a few clients in a column that is nearly constant at the others, would outweigh all other
inputs."""


def inputs_of(preparation: Mapping[str, Any], table: pd.DataFrame) -> NDArray[np.float32]:
    """The rows of a table, with at least the columns of the preparation, as (n, inputs).

    Raises a ValueError that names the column, the value and the row's label, if a column is
    missing or has something else than a number where numbers are expected.

    >>> preparation = {
    ...     "numbers": {"age": [50.0, 10.0]}, "scaled": True, "categories": {"sex": ["f", "m"]}
    ... }
    >>> inputs_of(preparation, pd.DataFrame({"sex": ["m", None], "age": [60, None]})).tolist()
    [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    """
    names = [*preparation["numbers"], *preparation["categories"]]
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise ValueError(f"the table lacks the column {missing[0]!r}")
    columns = {name: as_numbers(table[name], name) for name in preparation["numbers"]}
    columns |= {name: as_texts(table[name]) for name in preparation["categories"]}
    rows = pd.DataFrame(columns, index=table.index)
    if not names:
        return np.zeros((len(table), 0), np.float32)
    return np.asarray(transformer(preparation).transform(rows), np.float32)


def transformer(preparation: Mapping[str, Any]) -> ColumnTransformer:
    """Imputation, scaling and one-hot coding with the statistics of a preparation."""
    numbers, categories = preparation["numbers"], preparation["categories"]
    ends = FunctionTransformer(np.clip, kw_args={"a_min": -FARTHEST, "a_max": FARTHEST})
    scaling = [StandardScaler(), ends] if preparation["scaled"] else []
    encoder = OneHotEncoder(
        categories=[list(values) for values in categories.values()],
        handle_unknown="ignore",
        sparse_output=False,
    )
    parts = [
        ("numbers", make_pipeline(SimpleImputer(), *scaling), list(numbers)),
        ("categories", encoder, list(categories)),
    ]
    # These two rows have just the means and deviations that it is to learn.
    rows: dict[str, Any] = {name: [mean - d, mean + d] for name, (mean, d) in numbers.items()}
    rows |= {name: 2 * list(values[:1]) for name, values in categories.items()}
    return ColumnTransformer([part for part in parts if part[2]]).fit(pd.DataFrame(rows))


def as_numbers(column: pd.Series, name: str) -> pd.Series:
    """A column as floats, NaN where a value is missing."""
    numbers = pd.to_numeric(column, errors="coerce").astype("float64")
    wrong = np.flatnonzero((numbers.isna() & column.notna()) | np.isinf(numbers))
    if len(wrong):
        value, row = column.iloc[wrong[0]], column.index[wrong[0]]
        raise ValueError(f"column {name!r} has {str(value)!r} in {row}: expected a finite number")
    return numbers


def as_texts(column: pd.Series) -> pd.Series:
    """A column as texts without blanks around them, None where a value is missing."""
    return column.map(text_of, na_action="ignore").astype(object).where(column.notna(), None)


def text_of(value: Any) -> str:
    """A value as text; a whole number alike, whether it came as 1 or as 1.0.

    >>> text_of(1.0), text_of(" a ")
    ('1', 'a')
    """
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value) if whole else value).strip()


class TableModel:
    """A model of a table: its preparation, its network and its classes.

    The network is a file of safetensors with these dense ``layers``, or of ONNX without layers.
    Without ``classes`` it predicts a number.
    """

    def __init__(
        self, file: Path, preparation: Mapping[str, Any], classes: list[str], layers: list[str]
    ) -> None:
        self.file, self.preparation = file, preparation
        self.classes, self.layers = classes, layers

    def predict(self, table: pd.DataFrame) -> pd.DataFrame:
        """For each row the ``predicted`` class and the probability of each, or the number.

        Columns go by their names; others may be there. Raises a ValueError as `inputs_of`.
        """
        outputs = self.outputs(inputs_of(self.preparation, table)).astype(np.float64)
        if not self.classes:
            return pd.DataFrame({"predicted": outputs[:, 0]}, index=table.index)
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        chances = pd.DataFrame(
            powers / powers.sum(axis=1, keepdims=True), columns=self.classes, index=table.index
        )
        chances.insert(0, "predicted", np.array(self.classes, object)[outputs.argmax(axis=1)], True)
        return chances

    def outputs(self, inputs: NDArray[np.float32]) -> NDArray[Any]:
        """The network's logits, shape (n, classes), or numbers, shape (n, 1)."""
        if not self.layers:
            import onnxruntime

            session = onnxruntime.InferenceSession(self.file, providers=["CPUExecutionProvider"])
            return np.asarray(session.run(None, {"input": inputs})[0])
        from safetensors.numpy import load_file

        arrays, values = load_file(self.file), np.asarray(inputs)
        for place, layer in enumerate(self.layers):
            values = np.maximum(values, 0) if place else values
            values = values @ arrays[f"{layer}.weight"].T + arrays[f"{layer}.bias"]
        return values


def main(model: TableModel) -> None:
    """Predict the rows of the CSV file that is named on the command line, and print CSV."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} rows.csv > predictions.csv")
    try:
        predictions = model.predict(pd.read_csv(sys.argv[1]))
    except (OSError, ValueError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
    predictions.to_csv(sys.stdout, index=False)
