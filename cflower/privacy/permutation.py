"""A secret permutation P of a model's parameters (section V-B, eqs. 45 and 46).

Norms and inner products of updates stay the same when every client puts their entries into the
same other order. So the server can average, compare and split what it gets, without being told
which number is which parameter. `docs/privacy.md` says what that protects and what not.

Differences from the paper: P moves numbers only among arrays that are treated alike, which are
trained or not and have the same dtype. So nothing is rounded to another precision, BatchNorm's
statistics and counters stay out of norms and similarities, and all of them still travel permuted.
The arrays are taken in the order of their names, whatever order they come in.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import shake_256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cflower.errors import ConfigError
from cflower.messages.layout import UNTRAINED, is_trained

LEAST_SEED = 16
"""Bytes: 128 bits. Whoever guesses the seed undoes the permutation."""

Arrays = Mapping[str, NDArray[Any]]


def read_seed(path: str) -> bytes:
    """The secret in a seed file: its bytes, without white space at either end.

    Raises
    ------
    ConfigError
        If the path is relative, the file is missing, cannot be read, or is too short.
    """
    file = Path(path).expanduser()
    if not file.is_absolute():
        raise ConfigError(
            f"Got seed-file = {path!r}, a relative path: a client runs elsewhere, so name the "
            "whole path."
        )
    try:
        seed = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"Cannot read seed-file = {path!r}: {error.strerror}. Put the file that all clients "
            "share there, or correct the path."
        ) from None
    if len(seed) < LEAST_SEED:
        raise ConfigError(
            f"seed-file = {path!r} holds {len(seed)} bytes, but a seed that cannot be guessed "
            f"needs {LEAST_SEED} or more: make one for all clients with `openssl rand -hex 32`."
        )
    return seed


def commitment(seed: bytes) -> str:
    """What a client tells of its seed: equal for equal seeds, and not to be turned back."""
    return hmac.digest(seed, b"cflower commitment", "sha256").hex()


def permuted(arrays: Arrays, seed: bytes, untrained: Sequence[str] = UNTRAINED) -> dict[str, Any]:
    """Pθ: a model as it travels.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Every array of the model: the permutation depends on their names, shapes and dtypes.
    seed : bytes
        As `read_seed` gives it.
    untrained : sequence of str
        As in `Layout.of`; the same on all clients and the server.

    Returns
    -------
    dict of str to ndarray
        Arrays of the same names, shapes and dtypes in the same order; new ones.
    """
    return _rearranged(arrays, seed, untrained, lambda flat, order: flat[order])


def turn_back(arrays: Arrays, seed: bytes, untrained: Sequence[str] = UNTRAINED) -> dict[str, Any]:
    """P⁻¹θ: the model that `permuted` was given.

    Examples
    --------
    >>> model = {"w": np.array([[0.0, 1.0], [2.0, 3.0]]), "b": np.array([4.0, 5.0])}
    >>> seed = b"0123456789abcdef"
    >>> permuted(model, seed)["w"].tolist(), turn_back(permuted(model, seed), seed)["w"].tolist()
    ([[2.0, 4.0], [3.0, 5.0]], [[0.0, 1.0], [2.0, 3.0]])
    """
    return _rearranged(arrays, seed, untrained, _at_their_places)


def shuffled(arrays: Arrays, seed: bytes) -> dict[str, Any]:
    """Each array's entries in a secret order of its own.

    For a freshly initialised model, whose entries of one array are drawn alike: it stays one,
    but whoever knows how it was drawn does not know which entry is where.
    """
    return {
        key: array.reshape(-1)[_order(seed, f"first model {key}", array.size)].reshape(array.shape)
        for key, array in arrays.items()
    }


def derived_number(seed: bytes, purpose: str) -> int:
    """A 63-bit number for one purpose, which says nothing about the seed."""
    digest = hmac.digest(seed, f"cflower {purpose}".encode(), "sha256")
    return int.from_bytes(digest[:8], "big") >> 1


def _rearranged(
    arrays: Arrays,
    seed: bytes,
    untrained: Iterable[str],
    rearrange: Callable[[NDArray[Any], NDArray[np.intp]], NDArray[Any]],
) -> dict[str, Any]:
    alike: dict[str, list[str]] = {}
    for key in sorted(arrays):
        dtype = arrays[key].dtype
        kind = "trained" if is_trained(key, dtype, untrained) else "carried"
        alike.setdefault(f"{kind} {dtype.name}", []).append(key)
    moved = {}
    for group, keys in alike.items():
        flat = np.concatenate([arrays[key].reshape(-1) for key in keys])
        flat = rearrange(flat, _order(seed, group, len(flat)))
        ends = np.cumsum([arrays[key].size for key in keys])
        for key, part in zip(keys, np.split(flat, ends[:-1]), strict=True):
            moved[key] = part.reshape(arrays[key].shape)
    return {key: moved[key] for key in arrays}


def _at_their_places(flat: NDArray[Any], order: NDArray[np.intp]) -> NDArray[Any]:
    back = np.empty_like(flat)
    back[order] = flat
    return back


@lru_cache(maxsize=8)
def _order(seed: bytes, purpose: str, length: int) -> NDArray[np.intp]:
    """The places of 0 to length - 1 in a random order: those of numbers from a keyed hash.

    Unlike NumPy's generators a hash gives the same on every version, and hides its key.
    """
    stream = shake_256(hmac.digest(seed, f"cflower {purpose}".encode(), "sha256"))
    return np.argsort(np.frombuffer(stream.digest(8 * length), "<u8"), kind="stable")
