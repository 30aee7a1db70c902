"""Checkpoints: the algorithm's whole state after a round, so that a run can go on from there.

One safetensors file (no pickle) with the arrays, named by their digests, and the structure of the
state as JSON in its metadata; a second file has the SHA-256 of the first one's header, so that
every array is hashed once and written as it is. A vector is stored in blocks, and equal blocks
once: so the body that leaves share, at the beginning of their models, is there once. The structure
has the SHA-256 of other files of the run, too, as they were then: of ``rounds.jsonl``,
``config.json`` and the similarities. The last two checkpoints are kept; a run that is over keeps
only the last one if they are large.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from cflower.algorithm.state import Ask, CFLState, KnownUpdate, Move, Role
from cflower.algorithm.tree import Cluster, ParameterTree, Status, Trial
from cflower.algorithm.weights import Weights, blocks
from cflower.changes.norm_history import NormHistory
from cflower.errors import RunFolderError, first_line
from cflower.messages.failures import FailureRecord, Standing
from cflower.messages.messenger import Sent
from cflower.runs.reading import LARGEST, file_in, open_file, read_file
from cflower.runs.records import File, one_tree
from cflower.runs.writing import replace_file
from cflower.strategy.observers import Checkpoint

CHECKPOINT_FORMAT = "cflower-checkpoint-17"
BLOCK = 2**14
"""Entries of a vector that are stored together; of those in one block with the end of a body that
leaves share, each leaf stores its own."""
KEPT = 2
LARGE_CHECKPOINTS = 50_000_000
"""Bytes of checkpoints above which a run that is over keeps only the last one."""
RECORDS: Mapping[str, Callable[..., Any]] = {
    record.__name__: record
    for record in (
        *(Checkpoint, CFLState, FailureRecord, ParameterTree, Cluster, Weights, Trial),
        *(KnownUpdate, NormHistory, Move, Sent, Ask, Standing),
    )
}
ENUMS: Mapping[str, Callable[[str], Any]] = {"Role": Role, "Status": Status}


class Checkpoints:
    """The checkpoints of one run: it is resumed from them, and newcomers are assigned with them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._others: dict[str, tuple[int, Any]] = {}

    def refer_to(self, name: str, more: bytes) -> int:
        """Let checkpoints refer to this content, or this end, of another file of the run folder.

        Returns the file's size; of a file of this name the earlier content counts too.
        """
        size, digest = self._others.get(name, (0, hashlib.sha256()))
        digest.update(more)
        self._others[name] = size + len(more), digest
        return size + len(more)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove those before the last two."""
        name = f"{checkpoint.server_round:06d}"
        arrays, digests = dict[str, NDArray[Any]](), dict[int, list[str]]()

        def put(array: NDArray[Any]) -> list[str]:
            # By its id, because clients share arrays; a state keeps all of its own alive.
            if id(array) not in digests:
                parts = [b for _, b in blocks(array, BLOCK)] if array.ndim == 1 else []
                parts = list(map(np.ascontiguousarray, parts or [array]))
                digests[id(array)] = list(map(digest_of, parts))
                arrays.update(zip(digests[id(array)], parts, strict=True))
            return digests[id(array)]

        state = replace(checkpoint.state, placed={}, pending=None)  # they are of one round only
        whole = packed(checkpoint._replace(state=state), put)
        others = {name: (size, digest.hexdigest()) for name, (size, digest) in self._others.items()}
        structure = json.dumps({"format": CHECKPOINT_FORMAT, "checkpoint": whole, "others": others})
        header = safetensors_header(arrays, structure)
        contents = (array.reshape(-1).view(np.uint8) for array in arrays.values())
        replace_file(self._folder / f"{name}.safetensors", header, *contents)
        # The checksum comes last: without it the file does not count.
        checksum = hashlib.sha256(header).hexdigest()
        replace_file(self._folder / f"{name}.sha256", checksum.encode())
        self._keep(KEPT)

    def close(self) -> None:
        """Keep only the last checkpoint if they are large."""
        files = self._folder.glob("*.s*")  # a run without rounds has no such folder
        if sum(path.stat().st_size for path in files) > LARGE_CHECKPOINTS:
            self._keep(1)

    def _keep(self, most: int) -> None:
        last = sorted(path.stem for path in self._folder.glob("*.sha256"))[-most:]
        for path in self._folder.glob("*.s*"):
            if path.stem not in last:
                path.unlink()

    def newest(self, warn: Callable[[str], None], *, whole_run: bool = False) -> Checkpoint:
        """The newest checkpoint that is not damaged, or a `RunFolderError` if there is none.

        ``warn`` is called with one sentence for each that cannot be used. With ``whole_run`` the
        other files that it refers to must be as they were, too.
        """
        problem = "there is none"
        for checksum in sorted(self._folder.glob("*.sha256"), reverse=True):
            path = checksum.with_suffix(".safetensors")
            try:
                header = read_header(path)
                if hashlib.sha256(header).hexdigest() != read_file(checksum, 100).decode().strip():
                    raise ValueError("wrong checksum")
                checkpoint, others = read_checkpoint(path, header)
                if whole_run:
                    self._read_others(others)
            except Exception as error:  # a file from outside can be wrong in any way
                problem = first_line(error)
                warn(f"The checkpoint {path} cannot be read: {problem}.")
            else:
                return checkpoint
        raise RunFolderError(
            f"There is no whole checkpoint in {self._folder} ({problem}): copy the whole run "
            "folder, or run it again."
        )

    def _read_others(self, others: Mapping[str, tuple[int, str]]) -> None:
        self._others = {}
        for name, (size, digest) in others.items():
            content = read_file(file_in(self._folder.parent, name))
            # Lines may have been added since.
            self.refer_to(name, content[:size] if name == File.ROUNDS else content)
            if self._others[name][1].hexdigest() != digest:
                raise ValueError(f"{name}, which it refers to, is damaged")


def digest_of(array: NDArray[Any]) -> str:
    digest = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.hexdigest()


def safetensors_header(arrays: Mapping[str, NDArray[Any]], structure: str) -> bytes:
    """The header of a safetensors file, as ``safetensors.save`` makes it with the whole file in
    memory.
    """
    entries, end = dict[str, Any](__metadata__={"structure": structure}), 0
    for name, array in arrays.items():
        bits, place = 8 * array.itemsize, [end, end + array.nbytes]
        kind = "BOOL" if array.dtype.kind == "b" else f"{array.dtype.kind.upper()}{bits}"
        entries[name] = {"dtype": kind, "shape": array.shape, "data_offsets": place}
        end += array.nbytes
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_header(path: Path) -> bytes:
    """The header of a safetensors file: its length, then a JSON text."""
    with open_file(path) as file:
        length = file.read(8)
        return length + file.read(min(int.from_bytes(length, "little"), LARGEST))


def read_arrays(path: Path, header: bytes) -> dict[str, NDArray[Any]]:
    """The arrays of a file, which must be as long as its header says; ValueError if damaged."""
    entries = json.loads(header[8:]).values()
    ends = [entry["data_offsets"][1] for entry in entries if "data_offsets" in entry]
    size = len(header) + max(ends, default=0)
    if path.stat().st_size != size:
        raise ValueError(f"{path.name} does not have the {size:,} bytes of its arrays")
    arrays: dict[str, NDArray[Any]] = load(read_file(path, size))
    if any(digest_of(array) != digest for digest, array in arrays.items()):
        raise ValueError(f"{path.name} has other arrays than its header names")
    return arrays


def read_checkpoint(path: Path, header: bytes) -> tuple[Checkpoint, dict[str, Any]]:
    """The checkpoint in a file with this header, and the other files that it refers to."""
    structure = json.loads(json.loads(header[8:])["__metadata__"]["structure"])
    if structure["format"] != CHECKPOINT_FORMAT:
        raise ValueError(f"its format is {structure['format']!r}, not {CHECKPOINT_FORMAT!r}")
    arrays = read_arrays(path, header)

    @cache  # clients share arrays
    def whole(*digests: str) -> NDArray[Any]:
        first, *more = (arrays[digest] for digest in digests)
        return np.concatenate([first, *more]) if more else first

    checkpoint: Checkpoint = unpacked(structure["checkpoint"], whole)
    clusters = checkpoint.state.tree.clusters
    if not isinstance(checkpoint.server_round, int):
        raise ValueError(f"its round is {checkpoint.server_round!r}")
    if not one_tree({name: cluster.children for name, cluster in clusters.items()}):
        raise ValueError("its clusters are not one tree")
    return checkpoint, structure["others"]


def packed(value: Any, put: Callable[[NDArray[Any]], Any]) -> Any:
    """A value as JSON: arrays are put away and named, records are marked with their class."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        return {"array": put(value)}
    if isinstance(value, np.generic):  # such as what a criterion of the app remembers
        return value.item()
    if kind in ENUMS:
        return {kind: str(value)}
    if isinstance(value, Mapping):
        return {"map": {str(key): packed(part, put) for key, part in value.items()}}
    if kind in RECORDS and is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        return value
    return {kind if kind in RECORDS else "list": [packed(part, put) for part in parts]}


def unpacked(value: Any, whole: Callable[..., NDArray[Any]]) -> Any:
    """The inverse of `packed`; sequences become tuples."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return whole(*content)
    if kind in ENUMS:
        return ENUMS[kind](content)
    if kind == "map":
        return {key: unpacked(part, whole) for key, part in content.items()}
    parts = tuple(unpacked(part, whole) for part in content)
    return parts if kind == "list" else RECORDS[kind](*parts)
