"""NumPy archives (``.npz``) as a Dataset."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import datasets
import numpy as np
from numpy.typing import NDArray

from cflower.data.layouts import embedded
from cflower.errors import DataError

INPUTS = ("x", "images", "inputs")
LABELS = ("y", "labels")


def read_npz(folder: Path, files: list[Path]) -> datasets.Dataset:
    """All examples of these archives, one after another, with the columns image and label.

    Parameters
    ----------
    folder : Path
        Where they lie, for errors.
    files : list of Path
        Each holds inputs, shape (n, ...), under one name of `INPUTS`, and labels, shape (n,), whole
        numbers or texts, under one of `LABELS`.

    Raises
    ------
    DataError
        If an archive cannot be read, lacks an array, or the arrays do not go together.
    """
    inputs, labels = zip(*map(_arrays, files), strict=True)
    for file, array in zip(files, inputs, strict=True):
        if array.shape[1:] != inputs[0].shape[1:] or array.dtype != inputs[0].dtype:
            raise DataError(
                f"{folder} has arrays of different kinds, {inputs[0].shape[1:]} {inputs[0].dtype} "
                f"in {files[0].name} and {array.shape[1:]} {array.dtype} in {file.name}: bring "
                "them all to one shape and type."
            )
    if not sum(map(len, labels)):
        raise DataError(f"{folder} has no examples in its NPZ files: put data there.")
    names, places = np.unique(np.concatenate(labels), return_inverse=True)
    numbers = places.reshape(-1).astype(np.int64)
    return embedded(np.concatenate(inputs), numbers, [str(name) for name in names])


def _arrays(file: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Inputs and labels of one archive."""
    try:
        with np.load(file) as archive:  # no pickles: those could run code
            there = list(archive)
            found = [next((n for n in names if n in there), None) for names in (INPUTS, LABELS)]
            arrays = [archive[name] for name in found if name is not None]
    except (OSError, ValueError, BadZipFile, EOFError) as error:
        raise DataError(
            f"{file} cannot be read ({error}): write it with numpy.savez(file, x=..., y=...), "
            "without arrays of objects."
        ) from None
    for name, names in zip(found, (INPUTS, LABELS), strict=True):
        if name is None:
            raise DataError(
                f"{file} has no array named {' or '.join(names)}, only "
                f"{', '.join(there) or 'none'}: write it with numpy.savez(file, x=..., y=...)."
            )
    inputs, labels = arrays
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
    return inputs, labels
