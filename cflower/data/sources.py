"""Where examples come from: the embedded digits, a local folder, the Hub, published layouts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy as np
from numpy.typing import NDArray

from cflower.data.columns import with_classes
from cflower.data.layouts import HAM10000_SIZE, embedded, emnist, ham10000
from cflower.data.npz import read_npz
from cflower.data.text import windows
from cflower.data.toys import TOYS, toy
from cflower.errors import DataError
from cflower.seeding import generator

HUB_TIMEOUT = 5.0
"""Seconds to wait for the Hub before it counts as not reachable."""

_LAYOUTS = {"emnist": emnist, "ham10000": ham10000}


def load_source(name: str, *, size: int = 0, seed: int = 0) -> datasets.Dataset:
    """The training examples of a data set, shuffled, with a ClassLabel column.

    Parameters
    ----------
    name : str
        ``"digits"`` (1,797 real 8x8 digits that come with scikit-learn); ``"xor"`` or ``"axes"``,
        see `cflower.data.toys`; a local folder, see `load_folder`;
        ``"emnist:ROOT"`` or ``"ham10000:FOLDER"`` for their published layouts; else a data
        set name of the Hugging Face Hub, e.g. ``"ylecun/mnist"``. ``"text:"`` before a folder
        or a Hub name makes next-word prediction of its texts, see `cflower.data.text`.
    size : int
        At most this many examples, a random choice; 0 takes all.
    seed : int
        Decides the order and the choice.

    Returns
    -------
    datasets.Dataset
        The "train" split. Its labels are numbered over the whole source, so that every
        partition has the same classes.

    Raises
    ------
    DataError
        If there is no such source, or it has no training examples or no labels.
    """

    def choose(num_examples: int) -> NDArray[np.int64]:
        if num_examples == 0:
            raise DataError(f"{name} has no examples: put data there or choose another dataset.")
        order = generator(seed, "source").permutation(num_examples)
        return order[: size or None]

    layout, _, root = name.partition(":")
    if layout in _LAYOUTS and root:
        return _LAYOUTS[layout](Path(root).expanduser(), choose)
    if layout == "text" and root:
        return windows(with_classes(_by_name(root, seed), name), name, choose)
    source = _by_name(name, seed)
    return with_classes(source, name).select(choose(len(source)))


def _by_name(name: str, seed: int) -> datasets.Dataset:
    """What comes with cflower, lies in a folder or is on the Hub, as it is."""
    if name == "digits":
        return _digits()
    if name in TOYS:
        return toy(name, seed)
    return load_folder(Path(name).expanduser()) if _is_path(name) else _hub(name)


def image_size(name: str) -> int | None:
    """Pixels that the images of a source are resized to; None where they stay as they are."""
    return HAM10000_SIZE if name.startswith("ham10000:") else None


def _digits() -> datasets.Dataset:
    """Optical recognition of handwritten digits (Alpaydin and Kaynak, UCI), values n/16."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images / 16).astype(np.float32)
    return embedded(pixels, digits.target.astype(np.int64), [str(n) for n in range(10)])


def _is_path(name: str) -> bool:
    """Whether a name means a local folder: there is one, or it is written like a path."""
    written_like_one = name.startswith(("/", "~", ".")) or "\\" in name or name.count("/") > 1
    return written_like_one or Path(name).exists()


def load_folder(folder: Path, key: str = "dataset") -> datasets.Dataset:
    """The training examples in a local folder.

    Parameters
    ----------
    folder : Path
        Holds what ``datasets.load_dataset`` reads (Parquet, CSV, one folder of images per class
        ...) or NumPy archives, see `read_npz`.
    key : str
        The setting that names the folder, for errors.

    Raises
    ------
    DataError
        If it is missing, empty, cannot be read or has no training examples.
    """
    instead = " or use 'digits'" if key == "dataset" else ""
    if not folder.exists():
        raise DataError(
            f"{key} = {str(folder)!r}: there is no such folder; correct the path (an absolute "
            f"one is safest){instead}."
        )
    if not folder.is_dir():
        raise DataError(
            f"{key} = {str(folder)!r} is a file: give the folder that holds it, "
            f"{str(folder.parent)!r}."
        )
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        raise DataError(
            f"{key} = {str(folder)!r} is an empty folder: put Parquet, CSV or NPZ files or one "
            "folder of images per class into it."
        )
    if archives := [path for path in files if path.suffix == ".npz"]:
        return read_npz(folder, archives)
    with _quiet():
        try:
            parts = datasets.load_dataset(str(folder))
        except Exception as error:
            raise DataError(
                f"{key} = {str(folder)!r} cannot be read ({_first_line(error)}): it should "
                "hold Parquet, CSV or NPZ files of one form or one folder of images per class."
            ) from None
    return _train_part(parts, str(folder))


def _hub(name: str) -> datasets.Dataset:
    instead = "use 'digits', or a local folder by its path."
    with _quiet():
        reachable = _hub_reachable()
        try:
            if reachable:
                parts = datasets.load_dataset(name)
            else:
                with _offline():  # finds what an earlier run left in the cache
                    parts = datasets.load_dataset(name)
        except datasets.exceptions.DatasetNotFoundError:
            raise DataError(
                f"dataset = {name!r} is neither a local folder (from {os.getcwd()}) nor a public "
                f"data set of the Hugging Face Hub: correct the name, {instead}"
            ) from None
        except ConnectionError:
            raise DataError(
                f"dataset = {name!r} is not a local folder (from {os.getcwd()}) and the Hugging "
                f"Face Hub is not reachable: connect to it, {instead}"
            ) from None
        except Exception as error:
            raise DataError(
                f"dataset = {name!r} cannot be loaded from the Hugging Face Hub "
                f"({_first_line(error)}): choose another, {instead}"
            ) from None
    return _train_part(parts, name)


def _train_part(parts: Any, name: str) -> datasets.Dataset:
    if "train" not in parts:
        raise DataError(
            f"{name} has no training examples, only {', '.join(map(str, parts))}: name the files "
            "or their folder 'train'."
        )
    return parts["train"]


def _hub_reachable() -> bool:
    """Whether the Hub answers at all: a load would try six times, for half a minute or more."""
    try:
        session = huggingface_hub.get_session()
        session.head(huggingface_hub.constants.ENDPOINT, timeout=HUB_TIMEOUT)
    except Exception:  # whatever the HTTP library calls it, or offline mode
        return False
    return True


@contextmanager
def _offline() -> Iterator[None]:
    """Let `datasets` look into its cache only, as with HF_HUB_OFFLINE=1."""
    places: tuple[Any, ...] = (huggingface_hub.constants, datasets.config)
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars: every client would draw its own into the one log."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _first_line(error: BaseException) -> str:
    """What an error says, in at most one line."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__
