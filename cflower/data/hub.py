"""Reading with `datasets`: the Hugging Face Hub, and folders of other kinds than ours.

Imported only where it is needed: `datasets` alone takes over a second.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub

from cflower.data.columns import Table
from cflower.errors import DataError, first_line
from cflower.settings import require_data

datasets.disable_progress_bars()  # every client would draw its own into the one log

HUB_TIMEOUT = 5.0
"""Seconds to wait for the Hub before it counts as not reachable."""


def load_with_datasets(path: str, name: str) -> Table:
    """The training examples of a folder that `datasets` understands, or saved with save_to_disk."""
    saved = any((Path(path) / note).is_file() for note in ("dataset_dict.json", "state.json"))
    read = datasets.load_from_disk if saved else datasets.load_dataset
    return training_part(read(path), name)


def load_hub(name: str) -> Table:
    """The training examples of a public data set of the Hub, or of the local cache: ``NAME`` or
    ``NAME@REVISION``, a tag or a commit.
    """
    repository, _, revision = name.partition("@")
    try:
        with _reachable_or_cached():
            parts = datasets.load_dataset(repository, revision=revision or None)
    except Exception as error:
        raise DataError(
            f"dataset = {name!r} is not a local folder (from {os.getcwd()}), and the Hugging Face "
            f"Hub cannot give it ({first_line(error.__cause__ or error)}): correct the name, "
            "connect to the Hub, or use 'digits' or a local folder by its path."
        ) from None
    return training_part(parts, name)


def training_part(parts: Any, name: str) -> Table:
    """The table of a ``datasets.Dataset``, or of the part ``train`` of several."""
    if isinstance(parts, Mapping):
        require_data(
            "train" in parts,
            f"{name} has no training examples, only {', '.join(map(str, parts))}: name the "
            "files or their folder 'train'.",
        )
        parts = parts["train"]
    return Table.of(name, parts.with_format("arrow")[:])


@contextmanager
def _reachable_or_cached() -> Iterator[None]:
    """Let `datasets` look into its cache only, unless the Hub answers at all.

    Otherwise a load tries six times, for half a minute or more.
    """
    constants, config = huggingface_hub.constants, datasets.config
    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    try:
        huggingface_hub.get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT)
    except Exception:  # whatever the HTTP library calls it, or offline mode
        constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before
