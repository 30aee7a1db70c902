"""A secret permutation P of a model's parameters (section V-B, eqs. 45 and 46).

Norms and inner products of updates do not change when every client permutes their entries in the
same way. The server can therefore average, compare and split updates without knowing which number
is which parameter. `docs/how-it-works/privacy.md` explains what this protects.

Unlike the paper's, P moves numbers only among arrays of one dtype that are all trained or all not.
So nothing is rounded to another precision, and BatchNorm's statistics and counters stay out of
norms and similarities but are permuted too. Arrays are taken in the order of their names.
"""

import hmac
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import shake_256
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.supercore import log
from numpy.typing import NDArray

from cflower.errors import CFlowerError, ConfigError
from cflower.messages.layout import UNTRAINED, is_trained

LEAST_SEED = 16
"""Minimum length of a seed in bytes, 128 bits. A guessed seed undoes the permutation."""
SHORTEST = 0.9
"""Least norm of a model, in norms of the first model. Of the ten entries of an `mlp` that training
moves most, two are biases of the output layer; from half the first model seven, from zeros ten."""

Arrays = Mapping[str, NDArray[Any]]


def read_seed(path: str) -> bytes:
    """The secret in a seed file: its bytes, without white space at either end.

    `ConfigError` if the path is relative, or the file is missing, cannot be read, or is too short.
    """
    file = Path(path).expanduser()
    if not file.is_absolute():
        raise ConfigError(
            f"Got seed-file = {path!r}, a relative path: a client runs elsewhere, so give an "
            "absolute path."
        )
    try:
        seed = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(
            f"Cannot read seed-file = {path!r}: {error.strerror}. Put the file that all clients "
            "share there, or correct the path."
        ) from None
    _warn_of_readers(path, file.stat().st_mode)
    if len(seed) < LEAST_SEED:
        raise ConfigError(
            f"seed-file = {path!r} holds {len(seed)} bytes, but a seed that cannot be guessed "
            f"needs {LEAST_SEED} or more: make one for all clients with `openssl rand -hex 32`."
        )
    return seed


@lru_cache  # a simulated client reads the file for every message
def _warn_of_readers(path: str, mode: int) -> None:
    if os.name == "posix" and mode & 0o077:
        log(WARNING, "seed-file = %r can be read by other users: run `chmod 600` on it.", path)


def commitment(seed: bytes) -> str:
    """A text that is equal for equal seeds and does not reveal the seed."""
    return _digest(seed, "commitment").hex()


def permuted(
    arrays: Arrays, seed: bytes, untrained: Sequence[str] = UNTRAINED, *, back: bool = False
) -> dict[str, Any]:
    """Pθ: a model as it is sent; with ``back`` P⁻¹θ.

    P depends on the seed and on the names, shapes and dtypes of all arrays; ``untrained``, as in
    `Layout.of`, has to be equal on all clients and the server.

    >>> model = {"w": np.array([[0.0, 1.0], [2.0, 3.0]]), "b": np.array([4.0, 5.0])}
    >>> sent = permuted(model, seed := b"0123456789abcdef")
    >>> sent["w"].tolist(), permuted(sent, seed, back=True)["w"].tolist()
    ([[2.0, 4.0], [3.0, 5.0]], [[0.0, 1.0], [2.0, 3.0]])
    """
    alike: dict[str, list[str]] = {}
    for key in sorted(arrays):
        dtype = arrays[key].dtype
        kind = "trained" if is_trained(key, dtype, untrained) else "carried"
        alike.setdefault(f"{kind} {dtype.name}", []).append(key)
    moved = dict(arrays)
    for group, keys in alike.items():
        flat = np.concatenate([arrays[key].reshape(-1) for key in keys])
        flat = flat[_order(seed, group, len(flat), back=back)]
        ends = np.cumsum([arrays[key].size for key in keys])
        for key, part in zip(keys, np.split(flat, ends[:-1]), strict=True):
            moved[key] = part.reshape(arrays[key].shape)
    return moved


def shuffled(arrays: Arrays, seed: bytes) -> dict[str, Any]:
    """Each array's entries in a secret order of its own.

    For a freshly initialised model with the entries of each array drawn from one distribution. It
    remains such a model, but its initialisation no longer reveals the place of each entry.
    """
    return {
        key: array.reshape(-1)[_order(seed, f"first model {key}", array.size)].reshape(array.shape)
        for key, array in arrays.items()
    }


def refuse_chosen_model(received: Arrays, first: Arrays, server_round: int) -> None:
    """Raise a CFlowerError for a model that a server would send to find out the order.

    In round 1 it is the first model that the clients agreed on; later it is not shorter, as
    training does not make models shorter. From zeros, or next to it, the output layer's biases
    learn first and most, which shows their places.
    """
    trained = [key for key, array in first.items() if is_trained(key, array.dtype, UNTRAINED)]
    lengths = [
        float(np.linalg.norm([np.linalg.norm(model[key]) for key in trained]))
        for model in (received, first)
    ]
    if server_round == 1 and not all(np.allclose(received[key], first[key]) for key in first):
        raise CFlowerError("Refused to train: the first model is not the one of the clients' seed.")
    if not lengths[0] >= SHORTEST * lengths[1]:
        raise CFlowerError(
            f"Refused to train: the model's norm is {lengths[0]:.3g}, that of the first model "
            f"{lengths[1]:.3g}; training from a short model reveals the order of its entries."
        )


def derived_number(seed: bytes, purpose: str) -> int:
    """A 63-bit number for one purpose, which does not reveal the seed."""
    return int.from_bytes(_digest(seed, purpose)[:8], "big") >> 1


@lru_cache(maxsize=8)
def _order(seed: bytes, purpose: str, length: int, *, back: bool = False) -> NDArray[np.intp]:
    """The numbers 0 to length - 1 in a random order from a keyed hash, or the inverse order.

    Unlike NumPy's generators a hash is the same in every version, and hides its key.
    """
    stream = shake_256(_digest(seed, purpose))
    order = np.argsort(np.frombuffer(stream.digest(8 * length), "<u8"), kind="stable")
    return np.argsort(order) if back else order


def _digest(seed: bytes, purpose: str) -> bytes:
    return hmac.digest(seed, f"cflower {purpose}".encode(), "sha256")
