"""Checkpoints: the algorithm's whole state after a round, so that a run can go on from there.

One safetensors file a round (no pickle) with the arrays that are new, its structure as JSON in the
file's metadata, and beside it a file with its SHA-256. An array that lies in an earlier round's
file already is referred to there: of ten thousand clients a round may hear a hundred. The last two
checkpoints are kept, and the earlier files that they refer to.
"""

import hashlib
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from cflower.algorithm.moving import Move
from cflower.algorithm.norm_history import Habit
from cflower.algorithm.similarity import marks_of
from cflower.algorithm.state import CFLState, KnownUpdate
from cflower.algorithm.tree import ROOT, Cluster, ParameterTree, Weights
from cflower.algorithm.trial import Standing, Trial
from cflower.errors import RunFolderError
from cflower.messages.arrays import record_of, values_of
from cflower.messages.failures import FailureRecord
from cflower.messages.messenger import Asked
from cflower.runs.shapes import Shape, misfit, tangle
from cflower.strategy.observers import Checkpoint

FORMAT = "cflower-checkpoint-5"
KEPT = 2
STRUCTURE: Shape = {
    "server_round": int,
    "walking": {str: str},
    "habits": {str: list},
    "moves": [list],
    "failures": dict,
    "clusters": [
        {
            "name": str,
            "members": [str],
            "model": list,
            "born": int,
            "children": [str],
            "split_round": (int, type(None)),
            "edge": dict,
            "optimizer": dict,
            "memory": dict,
        }
    ],
    "known": {str: list},
}
ROWS = 1_000_000
"""Bytes from which the rows of a matrix are kept one by one: each belongs to a client."""


class Place(NamedTuple):
    """Where an array lies."""

    file: str
    num_bytes: int


class Pack:
    """The arrays of one checkpoint by their content.

    Parameters
    ----------
    name : str
        Of the checkpoint's own file.
    there : mapping of str to Place
        By digest: what lies in earlier files and may stay there.
    before : mapping
        The `digests` of the checkpoint before: of ten thousand clients few are new. An array is
        known by its id, so nothing in a state is ever changed in place.
    """

    def __init__(
        self, name: str, there: Mapping[str, Place], before: Mapping[Any, tuple[Any, str]]
    ) -> None:
        self._name, self._there, self._before = name, there, before
        self.digests: dict[Any, tuple[Any, str]] = {}
        """By an array's id, with the array, so that its id stays its own; or by a row's mark."""
        self.new: dict[str, NDArray[Any]] = {}
        self.used: dict[str, Place] = {}

    def put(self, array: NDArray[Any]) -> Any:
        """What to read it by again: ``file/digest``, or a list of these, one for each row."""
        if array.ndim == 2 and array.nbytes > ROWS:
            kind = array.dtype.str, array.shape[1]
            marks = marks_of(array).tolist()
            return [self._put(row, (*kind, m)) for row, m in zip(array, marks, strict=True)]
        return self._put(array, id(array), array)

    def _put(self, array: NDArray[Any], key: Any, holds: Any = None) -> str:
        told = self.digests.get(key) or self._before.get(key) or (holds, digest_of(array))
        self.digests[key], digest = told, told[1]
        place = self.used.get(digest) or self._there.get(digest)
        if place is None:
            self.new[digest] = np.ascontiguousarray(array)
            place = Place(self._name, array.nbytes)
        self.used[digest] = place
        return f"{place.file}/{digest}"


class PackReader:
    """The arrays that a checkpoint refers to.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._load = cache(self._load)  # type: ignore[method-assign]
        self.used: dict[str, Place] = {}

    def __getitem__(self, reference: str | list[str]) -> NDArray[Any]:
        """ValueError if its content is not what was written."""
        if isinstance(reference, list):
            return np.stack([self[row] for row in reference])
        file, digest = reference.split("/")
        array = self._load(file)[digest]
        if digest not in self.used and digest_of(array) != digest:
            raise ValueError(f"{file}.safetensors, which it refers to, is damaged")
        self.used[digest] = Place(file, array.nbytes)
        return array

    def _load(self, file: str) -> dict[str, NDArray[Any]]:
        return load((self._folder / f"{file}.safetensors").read_bytes())


class Checkpoints:
    """Those of one run.

    Parameters
    ----------
    folder : Path
    write : callable
        ``write(name, content)`` replaces a file in the folder atomically.
    """

    def __init__(self, folder: Path, write: Callable[[str, bytes], None]) -> None:
        self._folder, self._write = folder, write
        self._used: deque[Mapping[str, Place]] = deque(maxlen=KEPT)
        self._digests: Mapping[Any, tuple[Any, str]] = {}

    def save(self, checkpoint: Checkpoint) -> None:
        """Write what is new, then remove what the last two do not need."""
        name = f"{checkpoint.server_round:06d}"
        pack = Pack(name, self._worth_keeping(), self._digests)
        structure = json.dumps(structure_of(checkpoint, pack.put))
        # One entry: safetensors writes several in any order.
        content = save(pack.new, metadata={"structure": structure})
        self._write(f"{name}.safetensors", content)
        # The checksum comes last: without it the file does not count.
        self._write(f"{name}.sha256", hashlib.sha256(content).hexdigest().encode())
        self._used.append(pack.used)
        self._digests = pack.digests
        checksums = sorted(self._folder.glob("*.sha256"))
        for old in checksums[:-KEPT]:
            old.unlink()
        needed = {path.stem for path in checksums[-KEPT:]}
        needed |= {place.file for used in self._used for place in used.values()}
        for path in self._folder.glob("*.safetensors"):
            if path.stem not in needed:
                path.unlink()

    def newest(self, warn: Callable[[str], None]) -> Checkpoint:
        """The newest that is whole.

        Parameters
        ----------
        warn : callable
            Called with one sentence for each that cannot be used.

        Raises
        ------
        RunFolderError
            If there is none.
        """
        for checksum in sorted(self._folder.glob("*.sha256"), reverse=True):
            path = checksum.with_suffix(".safetensors")
            try:
                content = path.read_bytes()
                if hashlib.sha256(content).hexdigest() != checksum.read_text().strip():
                    warn(
                        f"The checkpoint {path} is damaged (wrong checksum): using the one before "
                        "it."
                    )
                    continue
                arrays = PackReader(self._folder)
                checkpoint = decode(content, arrays)
            except Exception as error:  # what is not written by us can be wrong in any way
                warn(f"The checkpoint {path} cannot be read ({error!r}): using the one before it.")
            else:
                self._used.append(arrays.used)
                return checkpoint
        raise RunFolderError(
            f"There is no whole checkpoint in {self._folder}: start the run anew, without resume."
        )

    def _worth_keeping(self) -> dict[str, Place]:
        """What the last checkpoint has in files of which it still needs half."""
        last = self._used[-1] if self._used else {}
        needed: Counter[str] = Counter()
        for place in last.values():
            needed[place.file] += place.num_bytes
        kept = {
            file
            for file, size in needed.items()
            if 2 * size > (self._folder / f"{file}.safetensors").stat().st_size
        }
        return {digest: place for digest, place in last.items() if place.file in kept}


def digest_of(array: NDArray[Any]) -> str:
    """Of an array's content, type and shape."""
    told = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    told.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return told.hexdigest()


def structure_of(checkpoint: Checkpoint, put: Callable[[NDArray[Any]], Any]) -> dict[str, Any]:
    """A checkpoint as JSON, its arrays put away."""
    tree, known = checkpoint.state.tree, checkpoint.state.known
    return {
        "format": FORMAT,
        "server_round": checkpoint.server_round,
        "walking": dict(tree.unassigned),
        "habits": checkpoint.state.habits,
        "moves": checkpoint.state.moves,
        "failures": checkpoint.failures.as_json(),
        "clusters": [
            {
                "name": cluster.name,
                "members": cluster.members,
                "model": [put(part) for part in cluster.model],
                "born": cluster.born,
                "children": cluster.children,
                "split_round": cluster.split_round,
                "edge": {client: put(vector) for client, vector in cluster.edge.items()},
                "optimizer": {key: put(vector) for key, vector in cluster.optimizer.items()},
                "memory": packed(cluster.memory, put),
                "general": cluster.general and [put(part) for part in cluster.general],
                "trial": cluster.trial,
                "undone": cluster.undone,
                "rounds": cluster.rounds,
            }
            for cluster in tree.clusters.values()
        ],
        "known": {
            client: [
                *(k.server_round, put(k.vector), k.norm, k.num_examples),
                *(put(k.origin), k.share, k.staleness),
            ]
            for client, k in known.items()
        },
        "outstanding": [
            [
                *(asked.client, asked.server_round, asked.cluster),
                {key: put(values_of(array)) for key, array in asked.arrays.items()},
            ]
            for asked in checkpoint.outstanding
        ],
    }


def decode(content: bytes, arrays: PackReader) -> Checkpoint:
    """The checkpoint in the bytes of a file."""
    structure = json.loads(metadata_of(content)["structure"])
    if structure.get("format") != FORMAT:
        raise ValueError(f"its format is {structure.get('format')!r}, not {FORMAT!r}")
    if problem := misfit(structure, STRUCTURE):
        raise ValueError(f"of its structure, {problem}")
    if problem := tangle({c["name"]: c for c in structure["clusters"]}, ROOT):
        raise ValueError(problem)
    clusters = {
        c["name"]: Cluster(
            c["name"],
            tuple(c["members"]),
            Weights(*(arrays[name] for name in c["model"])),
            c["born"],
            tuple(c["children"]),
            c["split_round"],
            {client: arrays[name] for client, name in c["edge"].items()},
            {key: arrays[name] for key, name in c["optimizer"].items()},
            unpacked(c["memory"], arrays),
            c["general"] and Weights(*(arrays[name] for name in c["general"])),
            c["trial"] and trial_of(c["trial"]),
            tuple(trial_of(trial) for trial in c["undone"]),
            c["rounds"],
        )
        for c in structure["clusters"]
    }
    known = {
        client: KnownUpdate(server_round, arrays[vector], norm, examples, arrays[origin], *more)
        for client, (server_round, vector, norm, examples, origin, *more) in (
            structure["known"].items()
        )
    }
    outstanding = tuple(
        Asked(client, server_round, cluster, record_of({k: arrays[v] for k, v in sent.items()}))
        for client, server_round, cluster, sent in structure.get("outstanding", ())
    )
    tree = ParameterTree(clusters, structure["walking"])
    failures = FailureRecord(**structure["failures"])
    habits = {client: Habit(*told) for client, told in structure["habits"].items()}
    moves = tuple(Move(*told) for told in structure["moves"])
    state = CFLState(tree, known, habits, moves)
    return Checkpoint(structure["server_round"], state, failures, outstanding)


def trial_of(told: list[Any]) -> Trial:
    """A trial as JSON has it."""
    began, until, parts, standing, reason = told
    return Trial(began, until, tuple(map(tuple, parts)), Standing(standing), reason)


def metadata_of(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file: eight bytes of length, then a JSON header."""
    length = int.from_bytes(content[:8], "little")
    metadata: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return metadata


def packed(memory: Any, put: Callable[[NDArray[Any]], Any]) -> Any:
    """A criterion's memory with its arrays put away and named."""
    if isinstance(memory, np.ndarray):
        return {"array": put(memory)}
    if isinstance(memory, Mapping):
        return {"map": {str(key): packed(value, put) for key, value in memory.items()}}
    if isinstance(memory, list | tuple):
        return {"list": [packed(value, put) for value in memory]}
    return {"value": memory}


def unpacked(memory: Any, arrays: PackReader) -> Any:
    """The inverse of `packed`; sequences come back as tuples."""
    ((kind, content),) = memory.items()
    if kind == "array":
        return arrays[content]
    if kind == "map":
        return {key: unpacked(value, arrays) for key, value in content.items()}
    if kind == "list":
        return tuple(unpacked(value, arrays) for value in content)
    return content
