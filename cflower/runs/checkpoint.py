"""Checkpoints: the algorithm's whole state after a round, so that a run can go on from there.

One safetensors file a round (no pickle) with the arrays, its structure as JSON in the file's
metadata, and beside it a file with its SHA-256. The last two are kept.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from cflower.algorithm.cfl_round import CFLState, KnownUpdate
from cflower.algorithm.moving import Habit, Move
from cflower.algorithm.tree import Cluster, ParameterTree, Weights
from cflower.algorithm.trial import Standing, Trial
from cflower.errors import RunFolderError
from cflower.federation.failures import FailureRecord
from cflower.federation.observers import Checkpoint

FORMAT = "cflower-checkpoint-3"
KEPT = 2


def write_checkpoint(folder: Path, checkpoint: Checkpoint, write: Callable[..., None]) -> None:
    """Write one checkpoint, then remove all but the last two.

    Parameters
    ----------
    folder : Path
        Of the checkpoints.
    checkpoint : Checkpoint
    write : callable
        ``write(name, content)`` replaces a file in the folder atomically.
    """
    content = encode(checkpoint)
    name = f"{checkpoint.server_round:06d}"
    write(f"{name}.safetensors", content)
    # The checksum comes last: without it the file does not count.
    write(f"{name}.sha256", hashlib.sha256(content).hexdigest().encode())
    for old in sorted(folder.glob("*.sha256"))[:-KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def read_checkpoint(folder: Path, warn: Callable[[str], None]) -> Checkpoint:
    """The newest checkpoint that is whole.

    Parameters
    ----------
    folder : Path
    warn : callable
        Called with one sentence for each checkpoint that cannot be used.

    Raises
    ------
    RunFolderError
        If there is none.
    """
    for checksum in sorted(folder.glob("*.sha256"), reverse=True):
        path = checksum.with_suffix(".safetensors")
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != checksum.read_text().strip():
                warn(f"The checkpoint {path} is damaged (wrong checksum): using the one before it.")
                continue
            return decode(content)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            warn(f"The checkpoint {path} cannot be read ({error}): using the one before it.")
    raise RunFolderError(
        f"There is no whole checkpoint in {folder}: start the run anew, without resume."
    )


def encode(checkpoint: Checkpoint) -> bytes:
    """A checkpoint as the bytes of a safetensors file."""
    arrays: dict[str, NDArray[Any]] = {}
    seen: dict[int, str] = {}

    def put(array: NDArray[Any]) -> str:
        # One copy of an array that several places share, such as the origin of updates.
        if id(array) not in seen:
            seen[id(array)] = name = str(len(arrays))
            arrays[name] = np.ascontiguousarray(array)
        return seen[id(array)]

    tree, known = checkpoint.state.tree, checkpoint.state.known
    structure = {
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
            }
            for cluster in tree.clusters.values()
        ],
        "known": {
            client: [k.server_round, put(k.vector), k.norm, k.num_examples, put(k.origin)]
            for client, k in known.items()
        },
    }
    return save(arrays, metadata={"format": FORMAT, "structure": json.dumps(structure)})


def decode(content: bytes) -> Checkpoint:
    """The checkpoint in the bytes of `encode`."""
    metadata = metadata_of(content)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"its format is {metadata.get('format')!r}, not {FORMAT!r}")
    arrays, structure = load(content), json.loads(metadata["structure"])
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
        )
        for c in structure["clusters"]
    }
    known = {
        client: KnownUpdate(server_round, arrays[vector], norm, num_examples, arrays[origin])
        for client, (server_round, vector, norm, num_examples, origin) in structure["known"].items()
    }
    tree = ParameterTree(clusters, structure["walking"])
    failures = FailureRecord(**structure["failures"])
    habits = {client: Habit(*told) for client, told in structure["habits"].items()}
    moves = tuple(Move(*told) for told in structure["moves"])
    return Checkpoint(structure["server_round"], CFLState(tree, known, habits, moves), failures)


def trial_of(told: list[Any]) -> Trial:
    """A trial as JSON has it."""
    began, until, parts, standing, reason = told
    return Trial(began, until, tuple(map(tuple, parts)), Standing(standing), reason)


def metadata_of(content: bytes) -> dict[str, str]:
    """The metadata of a safetensors file: eight bytes of length, then a JSON header."""
    length = int.from_bytes(content[:8], "little")
    metadata: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return metadata


def packed(memory: Any, put: Callable[[NDArray[Any]], str]) -> Any:
    """A criterion's memory with its arrays put away and named."""
    if isinstance(memory, np.ndarray):
        return {"array": put(memory)}
    if isinstance(memory, Mapping):
        return {"map": {str(key): packed(value, put) for key, value in memory.items()}}
    if isinstance(memory, list | tuple):
        return {"list": [packed(value, put) for value in memory]}
    return {"value": memory}


def unpacked(memory: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The inverse of `packed`; sequences come back as tuples."""
    ((kind, content),) = memory.items()
    if kind == "array":
        return arrays[content]
    if kind == "map":
        return {key: unpacked(value, arrays) for key, value in content.items()}
    if kind == "list":
        return tuple(unpacked(value, arrays) for value in content)
    return content
