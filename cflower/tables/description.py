"""A client's description of its table: the kind of each column, and small statistics."""

import re

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cflower.errors import DataError
from cflower.tables import ENOUGH_ROWS, LONGEST_CATEGORY, MOST_CATEGORIES, Facts
from cflower.tables.preparation import as_numbers, as_texts

DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([T ].*)?")
ID_NAME = re.compile(r"(.*[\W_])?(ids?|nr|no|mrn|pid|key|uuid|index|patient|case|subject)", re.I)
"""Names of columns of numbers that only distinguish rows."""


def describe(table: pd.DataFrame, train: NDArray[np.int64]) -> dict[str, Facts]:
    """The facts about each column: its ``kind``, and by kind what the server needs of it.

    - ``"number"``: ``count``, ``mean`` and ``variance`` of the training rows' values, and whether
      it is an ``id``, with another whole number in every row;
    - ``"text"``: how many ``rows`` have one, and how many ``different`` ones there are; unless
      these are too many or too long, the ``values`` that at least two rows have;
    - ``"date"`` or ``"empty"``: nothing.

    So no value of a single row is in it, such as a name or the number of a patient.
    """
    return {name: facts_of(table[name], name, train) for name in table.columns}


def facts_of(column: pd.Series, name: str, train: NDArray[np.int64]) -> Facts:
    """The facts about one column."""
    known = column.dropna()
    if not len(known):
        return {"kind": "empty"}
    if pd.api.types.is_numeric_dtype(column):
        return number_facts(column, name, train)
    if pd.api.types.is_datetime64_any_dtype(column):
        return {"kind": "date"}
    texts = as_texts(known)
    if texts.map(lambda text: DATE.fullmatch(text) is not None).all():
        return {"kind": "date"}
    numeric = pd.to_numeric(texts, errors="coerce").notna()
    if numeric.all():
        return number_facts(column, name, train)
    if 2 * numeric.sum() > len(texts):
        row = texts[~numeric].index[0]
        raise DataError(
            f"column {name!r} has {texts[~numeric].iloc[0]!r} in {row}, and numbers in most "
            "others: correct it, or leave the cell empty"
        )
    rows = texts.value_counts()
    facts: Facts = {"kind": "text", "rows": len(texts), "different": len(rows)}
    few = len(rows) <= MOST_CATEGORIES and texts.map(len).max() <= LONGEST_CATEGORY
    return facts | ({"values": sorted(rows.index[rows > 1])} if few else {})


def number_facts(column: pd.Series, name: str, train: NDArray[np.int64]) -> Facts:
    """The facts about a column of numbers."""
    try:
        numbers = as_numbers(column, name)
    except ValueError as error:
        raise DataError(f"{error}: correct it, or leave the cell empty") from None
    known, trained = numbers.dropna(), numbers.iloc[train].dropna()
    several = len(trained) > 1  # the mean of one value is that value
    return {
        "kind": "number",
        "count": len(trained) if several else 0,
        "mean": float(trained.mean()) if several else 0.0,
        "variance": float(trained.var(ddof=0)) if several else 0.0,
        "id": is_id(known.to_numpy(), name),
    }


def is_id(numbers: NDArray[np.float64], name: str) -> bool:
    """Whether whole numbers differ in every row, and are named or counted as ids are.

    >>> is_id(np.array([7.0, 3.0]), "patient_id"), is_id(np.array([61.0, 58.0]), "age")
    (True, False)
    """
    distinct = np.unique(numbers)
    if len(distinct) < max(len(numbers), 2) or (distinct % 1).any():
        return False
    counted = len(distinct) >= ENOUGH_ROWS and distinct[-1] - distinct[0] == len(distinct) - 1
    return bool(counted) or ID_NAME.fullmatch(name) is not None
