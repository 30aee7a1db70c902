"""Checkpoints: the algorithm's whole state after a round, so that a run can go on from there.

One safetensors file (no pickle) with the new arrays, named by their digests, and the structure of
the state as JSON in its metadata; a second file has the SHA-256 of the first one's header, so that
every array is hashed once and written as it is. The structure has the SHA-256 of other files of the
run, too, as they were then: of ``rounds.jsonl``, ``config.json`` and the similarities. Arrays that
are already in an earlier file are referred to there: of ten thousand clients a round may sample a
hundred. The last two checkpoints are kept, and the earlier files that they refer to. These two
share no file, so that a damaged one makes only one of them unusable: each refers to files of every
other checkpoint. A run that is over keeps only the last one if its checkpoints are large.
"""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from cflower.algorithm.state import Ask, CFLState, KnownUpdate, Move, Role
from cflower.algorithm.tree import Cluster, ParameterTree, Status, Trial
from cflower.algorithm.weights import Weights
from cflower.changes.norm_history import NormHistory
from cflower.errors import RunFolderError, first_line
from cflower.messages.failures import FailureRecord, Standing
from cflower.messages.messenger import Sent
from cflower.runs.reading import LARGEST, file_in, open_file, read_file
from cflower.runs.records import File, one_tree
from cflower.runs.writing import replace_file
from cflower.seeding import generator
from cflower.strategy.observers import Checkpoint

CHECKPOINT_FORMAT = "cflower-checkpoint-14"
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
ROWS = 1_000_000
"""Bytes from which the rows of an array are kept one by one: each belongs to a client."""


class Place(NamedTuple):
    """The file that holds an array."""

    file: str
    num_bytes: int


class Pack:
    """The arrays of one checkpoint by their content.

    ``name`` is that of its own file, ``there`` has the arrays in earlier files that may stay there,
    by their digests, and ``before`` the `digests` of the checkpoint before. An array is identified
    by its id, so nothing in a state is ever changed in place.
    """

    def __init__(
        self, name: str, there: Mapping[str, Place], before: Mapping[Any, tuple[Any, str]]
    ) -> None:
        self._name, self._there, self._before = name, there, before
        self.digests: dict[Any, tuple[Any, str]] = {}
        """Digests by an array's id, with the array, so that its id stays its own; or by a row."""
        self.new: dict[str, NDArray[Any]] = {}
        self.used: dict[str, Place] = {}

    def put(self, array: NDArray[Any]) -> Any:
        """The reference of an array: ``file/digest``, or a list of these, one for each row."""
        if array.ndim > 1 and array.nbytes > ROWS:
            kind = array.dtype.str, *array.shape[1:]
            marks = marks_of(array.reshape(len(array), -1)).tolist()
            return [self._put(row, (*kind, m)) for row, m in zip(array, marks, strict=True)]
        return self._put(array, id(array), array)

    def _put(self, array: NDArray[Any], key: Any, holds: Any = None) -> str:
        entry = self.digests.get(key) or self._before.get(key) or (holds, digest_of(array))
        self.digests[key], digest = entry, entry[1]
        place = self.used.get(digest) or self._there.get(digest)
        if place is None:
            self.new[digest] = np.ascontiguousarray(array)
            place = Place(self._name, array.nbytes)
        self.used[digest] = place
        return f"{place.file}/{digest}"


def marks_of(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """Hash of every row, shape (m,): equal for rows that are equal to the last bit."""
    bits = np.ascontiguousarray(rows).view(f"u{rows.dtype.itemsize}")
    key = generator(0, "distinct").integers(2**64, size=bits.shape[1], dtype=np.uint64)
    return np.asarray(np.einsum("ij,j->i", bits, key))


class PackReader:
    """The arrays that a checkpoint in a folder refers to."""

    def __init__(self, folder: Path) -> None:
        self._load = cache(lambda file: load(read_arrays(folder / f"{file}.safetensors")))
        self.used: dict[str, Place] = {}

    def __getitem__(self, reference: str | list[str]) -> NDArray[Any]:
        """The array of a reference; ValueError if it is damaged."""
        if isinstance(reference, list):
            return np.stack([self[row] for row in reference])
        file, digest = reference.split("/")
        array = self._load(file)[digest]
        if digest not in self.used and digest_of(array) != digest:
            raise ValueError(f"{file}.safetensors, which it refers to, is damaged")
        self.used[digest] = Place(file, array.nbytes)
        return array


class Checkpoints:
    """The checkpoints of one run: the one store of its models and updates.

    A run is resumed from them, and newcomers are assigned with them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = ""
        self._used: deque[Mapping[str, Place]] = deque([{}, {}], maxlen=KEPT)
        self._digests: Mapping[Any, tuple[Any, str]] = {}
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
        """Write the new arrays, then remove the files that the last two checkpoints do not need."""
        name = f"{checkpoint.server_round:06d}"
        state = replace(checkpoint.state, placed={}, pending=None)  # they are of one round only
        pack, whole = self._packed(name, checkpoint._replace(state=state))
        others = {name: (size, digest.hexdigest()) for name, (size, digest) in self._others.items()}
        structure = json.dumps({"format": CHECKPOINT_FORMAT, "checkpoint": whole, "others": others})
        header = safetensors_header(pack.new, structure)
        contents = (array.reshape(-1).view(np.uint8) for array in pack.new.values())
        replace_file(self._folder / f"{name}.safetensors", header, *contents)
        # The checksum comes last: without it the file does not count.
        checksum = hashlib.sha256(header).hexdigest()
        replace_file(self._folder / f"{name}.sha256", checksum.encode())
        self._last = name
        self._used.append(pack.used)
        self._digests = pack.digests
        checksums = sorted(self._folder.glob("*.sha256"))
        needed = {path.stem for path in checksums[-KEPT:]}
        needed |= {place.file for used in self._used for place in used.values()}
        arrays = [path for path in self._folder.glob("*.safetensors") if path.stem not in needed]
        for old in (*checksums[:-KEPT], *arrays):
            old.unlink()

    def close(self) -> None:
        """Of large checkpoints keep only the last one, and the files that it refers to."""
        files = [*self._folder.glob("*")]  # a run without rounds has no such folder
        if sum(path.stat().st_size for path in files) <= LARGE_CHECKPOINTS:
            return
        needed = {self._last, *(place.file for place in self._used[-1].values())}
        for path in files:
            if path.stem not in needed or (path.suffix == ".sha256" and path.stem != self._last):
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
                arrays = PackReader(self._folder)
                checkpoint, others = read_checkpoint(header, arrays)
                if whole_run:
                    self._read_others(others)
            except Exception as error:  # a file from outside can be wrong in any way
                problem = first_line(error)
                warn(f"The checkpoint {path} cannot be read: {problem}.")
            else:
                self._last = path.stem
                self._used.append(arrays.used)
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

    def _packed(self, name: str, checkpoint: Checkpoint) -> tuple[Pack, Any]:
        """The arrays of a checkpoint and its structure, see `packed`.

        It refers to files of the checkpoint before the last of which it needs half.
        """
        there, digests = self._used[0], self._digests
        while True:
            pack = Pack(name, there, digests)
            whole, needed = packed(checkpoint, pack.put), Counter[str]()
            for place in pack.used.values():
                needed[place.file] += place.num_bytes
            del needed[name]
            paths = {file: self._folder / f"{file}.safetensors" for file in needed}
            waste = {file for file, path in paths.items() if 2 * needed[file] < path.stat().st_size}
            if not waste:
                return pack, whole
            there = {digest: place for digest, place in there.items() if place.file not in waste}
            digests = pack.digests


def digest_of(array: NDArray[Any]) -> str:
    digest = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return digest.hexdigest()


def safetensors_header(arrays: Mapping[str, NDArray[Any]], structure: str) -> bytes:
    """The header of a safetensors file with these arrays and this text; their bytes follow it.

    As ``safetensors.save``, which makes the whole file in memory.
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


def read_arrays(path: Path) -> bytes:
    """A safetensors file, which must be as long as its header says; ValueError if it is not."""
    header = read_header(path)
    entries = json.loads(header[8:]).values()
    ends = [entry["data_offsets"][1] for entry in entries if "data_offsets" in entry]
    size = len(header) + max(ends, default=0)
    if path.stat().st_size != size:
        raise ValueError(f"{path.name} does not have the {size:,} bytes of its arrays")
    return read_file(path, size)


def read_checkpoint(header: bytes, arrays: PackReader) -> tuple[Checkpoint, dict[str, Any]]:
    """The checkpoint in a file by its header, and the other files that it refers to."""
    structure = json.loads(json.loads(header[8:])["__metadata__"]["structure"])
    if structure["format"] != CHECKPOINT_FORMAT:
        raise ValueError(f"its format is {structure['format']!r}, not {CHECKPOINT_FORMAT!r}")
    checkpoint: Checkpoint = unpacked(structure["checkpoint"], arrays)
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


def unpacked(value: Any, arrays: PackReader) -> Any:
    """The inverse of `packed`; sequences become tuples."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[content]
    if kind in ENUMS:
        return ENUMS[kind](content)
    if kind == "map":
        return {key: unpacked(part, arrays) for key, part in content.items()}
    parts = tuple(unpacked(part, arrays) for part in content)
    return parts if kind == "list" else RECORDS[kind](*parts)
