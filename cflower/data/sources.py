"""Sources of examples: the embedded digits, a folder, the Hub, a user's own function."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa

from cflower.data.columns import Table, check_classes
from cflower.data.folders import load_folder
from cflower.data.settings import DataSettings
from cflower.data.stored import Stored
from cflower.data.text import windows
from cflower.errors import DataError, first_line
from cflower.own_code import called, names_own_code, own_function
from cflower.seeding import generator
from cflower.settings import require_data


def load_source(settings: DataSettings) -> Stored:
    """The training examples of the ``dataset``, at most ``dataset_size``, shuffled by the seed.

    It is ``"digits"`` (1,797 real 8x8 digits that come with scikit-learn), a local folder,
    ``"package.module:function"``, or a name of the Hugging Face Hub; ``"text:"`` before any of them
    makes next-word prediction of its texts. Labels are numbered over the whole source, so that
    every partition has the same classes.
    """
    name = settings.dataset.removeprefix("text:")
    written_like_a_path = name.startswith(("/", "~", ".")) or "\\" in name or name.count("/") > 1
    if name == "digits":
        table = _digits()
    elif written_like_a_path or Path(name).exists():
        table = load_folder(Path(name).expanduser())
    elif names_own_code(name):
        table = own_table(name)
    else:
        from cflower.data.hub import load_hub  # imports `datasets`

        table = load_hub(name)
    source = (windows if settings.is_text else Stored.of)(table, settings)
    if not settings.is_regression:
        check_classes(source.class_names, source.name)
    order = generator(settings.seed, "source").permutation(len(source))
    return source.take(order[: settings.dataset_size or None])


def own_table(name: str) -> Table:
    """The examples that a user's own function ``package.module:function`` returns.

    It takes no argument and returns the same at every call, as every process of a run calls it:

    - ``(inputs, labels)``: arrays of shape (n, features), (n, height, width) or (n,
      channels, height, width), and (n,), of whole numbers or texts;
    - a mapping from column name to such arrays, for data with more columns;
    - a table: pandas, polars, pyarrow, or ``datasets.Dataset`` or ``DatasetDict``.
    """
    source = f"dataset = {name!r}"
    result = called("dataset", name, own_function("dataset", name))
    package = type(result).__module__.partition(".")[0]
    if package == "datasets":
        from cflower.data.hub import training_part

        return training_part(result, source)
    expected = (
        "expected (inputs, labels), a mapping from column names to arrays, or a table of pandas, "
        "polars, pyarrow or datasets."
    )
    if isinstance(result, tuple):
        count = len(result)
        require_data(count == 2, f"{source} returned {count} values: {expected}")
        result = dict(zip(("x", "label"), result, strict=True))
    try:
        if isinstance(result, Mapping):
            return Table(source, {str(name): np.atleast_1d(a) for name, a in result.items()})
        if package == "pandas":
            result = pa.Table.from_pandas(result, preserve_index=False)
        return Table.of(source, pa.table(result))
    except (TypeError, ValueError, AttributeError) as error:  # Arrow's are of these kinds
        raise DataError(
            f"{source} returned a {type(result).__name__} ({first_line(error)}): {expected}"
        ) from None


def _digits() -> Table:
    """Optical recognition of handwritten digits (Alpaydin and Kaynak, UCI), values n/16."""
    # As `sklearn.datasets.load_digits` reads it, which takes most of a second to import.
    (package,) = find_spec("sklearn").submodule_search_locations  # type: ignore[union-attr,misc]
    rows = np.loadtxt(Path(package) / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    columns = {
        "image": (rows[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32),
        "label": rows[:, -1].astype(np.int64),
    }
    return Table("digits", columns, {"label": tuple("0123456789")})
