"""NumPy archives (``.npz``) as a table."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.data.columns import Roles, Table, listed
from cflower.errors import DataError, first_line

INPUTS = ("x", "images", "inputs")
LABELS = ("y", "labels")


def read_npz(name: str, files: list[Path], roles: Roles) -> Table:
    """All examples of these archives, one after another.

    Parameters
    ----------
    name : str
        Where they lie, for errors.
    files : list of Path
        Each holds inputs, shape (n, ...), under one name of `INPUTS`, and labels, shape (n,), whole
        numbers or texts, under one of `LABELS`, or both under the names in `roles`; and what
        else `roles` asks for, shape (n,).
    roles : Roles

    Returns
    -------
    Table
        With the columns ``x`` and ``y``, or as `roles` names them.

    Raises
    ------
    DataError
        If an archive cannot be read, lacks an array, or the arrays do not go together.
    """
    parts = [_arrays(file, roles) for file in files]
    first, x = parts[0], roles.inputs or "x"
    for file, part in zip(files, parts, strict=True):
        if (part[x].shape[1:], part[x].dtype) != (first[x].shape[1:], first[x].dtype):
            raise DataError(
                f"{name} has arrays of different kinds, {first[x].shape[1:]} {first[x].dtype} in "
                f"{files[0].name} and {part[x].shape[1:]} {part[x].dtype} in {file.name}: bring "
                "them all to one shape and type."
            )
    common = [column for column in first if all(column in part for part in parts)]
    columns = {column: joined([part[column] for part in parts]) for column in common}
    if not len(columns[x]):
        raise DataError(f"{name} has no examples in its NPZ files: put data there.")
    return Table(name, columns)


def joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """The rows of several arrays; of one alone no copy, as it may fill half the memory."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _arrays(file: Path, roles: Roles) -> dict[str, NDArray[Any]]:
    """What is asked for in one archive: inputs, labels, and what else tells something."""
    x, y = roles.inputs or "x", roles.label or "y"
    try:
        with np.load(file) as archive:  # no pickles: those could run code
            there = list(archive)
            wanted = {x: _named(there, roles.inputs, INPUTS, "input-columns", file)}
            if not roles.unlabelled:
                wanted[y] = _named(there, roles.label, LABELS, "label-column", file)
            wanted |= {name: name for name in roles.told if name in there}
            arrays = {column: archive[name] for column, name in wanted.items()}
    except DataError:
        raise
    except Exception as error:  # NumPy's and zipfile's, of many kinds
        raise DataError(
            f"{file} cannot be read ({first_line(error)}): write it with "
            "numpy.savez(file, x=..., y=...), without arrays of objects."
        ) from None
    inputs = arrays[x]
    labels = arrays.setdefault(y, np.zeros(len(inputs) if inputs.ndim else 0, np.int64))
    if inputs.dtype.kind not in "buif" or not 2 <= inputs.ndim <= 4 or 0 in inputs.shape[1:]:
        raise DataError(
            f"{file} has inputs of shape {inputs.shape} and type {inputs.dtype}: expected numbers "
            "of shape (n, features), (n, height, width) or (n, channels, height, width)."
        )
    if labels.shape != inputs.shape[:1] or labels.dtype.kind not in "buiU":
        raise DataError(
            f"{file} has labels of shape {labels.shape} and type {labels.dtype} for {len(inputs)} "
            "inputs: expected one whole number or text for each."
        )
    for column in roles.told:
        if column in arrays and arrays[column].shape != labels.shape:
            raise DataError(
                f"{file} has {column!r} of shape {arrays[column].shape} for {len(inputs)} inputs: "
                "expected one whole number or text for each."
            )
    return arrays


def _named(there: list[str], wanted: str, usual: tuple[str, ...], key: str, file: Path) -> str:
    """The array that is asked for, or one with a usual name."""
    names = (wanted,) if wanted else usual
    found = next((name for name in names if name in there), None)
    if found is None:
        asked = f" ({key})" if wanted else ""
        raise DataError(
            f"{file} has no array named {' or '.join(names)}{asked}, only {listed(there)}: write "
            "it with numpy.savez(file, x=..., y=...)."
        )
    return found
