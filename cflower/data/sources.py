"""Where examples come from: the embedded digits, a folder, the Hub, a user's own function."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cflower.data.columns import FOUND, Roles, Table
from cflower.data.folders import load_folder
from cflower.data.published_formats import HAM10000_SIZE, emnist, ham10000
from cflower.data.stored import Stored
from cflower.data.text import windows
from cflower.data.toys import TOYS, toy
from cflower.errors import DataError, first_line
from cflower.own_code import called, names_own_code, own_function
from cflower.seeding import generator

_LAYOUTS = {"emnist": emnist, "ham10000": ham10000}


def load_source(name: str, *, size: int = 0, seed: int = 0, roles: Roles = FOUND) -> Stored:
    """The training examples of a data set, shuffled.

    Parameters
    ----------
    name : str
        ``"digits"`` (1,797 real 8x8 digits that come with scikit-learn); ``"xor"`` or ``"axes"``,
        see `cflower.data.toys`; a local folder, see `load_folder`;
        ``"emnist:ROOT"`` or ``"ham10000:FOLDER"`` for their published layouts;
        ``"package.module:function"``, see `own_table`; else a data
        set name of the Hugging Face Hub, e.g. ``"ylecun/mnist"``. ``"text:"`` before any of
        them makes next-word prediction of its texts, see `cflower.data.text`.
    size : int
        At most this many examples, a random choice; 0 takes all.
    seed : int
        Decides the order and the choice.
    roles : Roles
        Which column is what.

    Returns
    -------
    Stored
        The "train" split. Its labels are numbered over the whole source, so that every
        partition has the same classes.

    Raises
    ------
    DataError, ConfigError
        If there is no such source, or it has no training examples or no labels.
    """
    layout, _, root = name.partition(":")
    if layout == "text" and root:
        source = windows(_by_name(root, seed, roles), roles)
    elif layout in _LAYOUTS and root:
        source = Stored.of(_LAYOUTS[layout](Path(root).expanduser()), roles, image_size(name))
    else:
        source = Stored.of(_by_name(name, seed, roles), roles)
    if not len(source):
        raise DataError(f"{name} has no examples: put data there or choose another dataset.")
    order = generator(seed, "source").permutation(len(source))
    return source.take(order[: size or None])


def _by_name(name: str, seed: int, roles: Roles) -> Table:
    """What comes with cflower, a function makes, lies in a folder or is on the Hub, as it is."""
    if name == "digits":
        return _digits()
    if name in TOYS:
        return toy(name, seed)
    if _is_path(name):
        return load_folder(Path(name).expanduser(), roles=roles)
    if names_own_code(name):
        return own_table(name)
    from cflower.data.hub import load_hub  # imports `datasets`

    return load_hub(name)


def own_table(name: str) -> Table:
    """The examples that a user's own function returns.

    Parameters
    ----------
    name : str
        ``package.module:function``; the function takes nothing and returns one of

        - ``(inputs, labels)``: arrays of shape (n, features), (n, height, width) or (n,
          channels, height, width), and (n,), of whole numbers or texts;
        - a mapping from column name to such arrays, for data that tell more of an example;
        - a table: pandas, polars, pyarrow, or ``datasets.Dataset`` or ``DatasetDict``.

        It has to return the same at every call: every process of a run calls it once.

    Raises
    ------
    ConfigError
        If there is no such function, or it raises.
    DataError
        If it returns something else.
    """
    found = called("dataset", name, own_function("dataset", name))
    expected = (
        "expected (inputs, labels), a mapping from column names to arrays, or a table of pandas, "
        "polars, pyarrow or datasets"
    )
    if isinstance(found, tuple):
        if len(found) != 2:
            raise DataError(f"dataset = {name!r} returned {len(found)} values: {expected}.")
        found = {"x": found[0], "label": found[1]}
    if type(found).__module__.startswith("datasets."):
        from cflower.data.hub import training_part

        return training_part(found, f"dataset = {name!r}")
    try:
        if isinstance(found, Mapping):
            return _of_arrays(name, {str(key): np.asarray(a) for key, a in found.items()})
        if type(found).__module__.startswith("pandas."):
            found = pa.Table.from_pandas(found, preserve_index=False)
        return Table.of(f"dataset = {name!r}", pa.table(found))
    except (TypeError, ValueError, AttributeError) as error:  # Arrow's are of these kinds
        raise DataError(
            f"dataset = {name!r} returned a {type(found).__name__} ({first_line(error)}): "
            f"{expected}."
        ) from None


def _of_arrays(name: str, columns: Mapping[str, Any]) -> Table:
    lengths = {key: len(array) if array.ndim else 0 for key, array in columns.items()}
    if len(set(lengths.values())) != 1:
        told = ", ".join(f"{key} {length}" for key, length in lengths.items()) or "none"
        raise DataError(
            f"dataset = {name!r} returned arrays of different lengths ({told}): expected one row "
            "for each example."
        )
    return Table(f"dataset = {name!r}", columns)


def image_size(name: str) -> int | None:
    """Pixels that the images of a source are resized to; None where they stay as they are."""
    return HAM10000_SIZE if name.startswith("ham10000:") else None


def _digits() -> Table:
    """Optical recognition of handwritten digits (Alpaydin and Kaynak, UCI), values n/16."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    columns = {
        "image": (digits.images / 16).astype(np.float32),
        "label": digits.target.astype(np.int64),
    }
    return Table("digits", columns, {"label": tuple(str(n) for n in range(10))})


def _is_path(name: str) -> bool:
    """Whether a name means a local folder: there is one, or it is written like a path."""
    written_like_one = name.startswith(("/", "~", ".")) or "\\" in name or name.count("/") > 1
    return written_like_one or Path(name).exists()
