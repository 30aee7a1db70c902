"""What a checkpoint writes, and what it needs to be read again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cflower.algorithm.state import CFLState, KnownUpdate
from cflower.algorithm.tree import ParameterTree, Weights
from cflower.errors import RunFolderError
from cflower.recording.checkpoint import Checkpoints
from cflower.strategy.observers import Checkpoint

CLIENTS, LENGTH = 100, 10_000


def heard(client: int, server_round: int) -> np.ndarray:
    """An update, different for each client and round."""
    return np.random.default_rng([client, server_round]).normal(size=LENGTH).astype(np.float32)


def run(folder: Path, rounds: range, share: int, before: Checkpoint | None = None) -> Checkpoint:
    """Write a checkpoint after each round, in which ``share`` clients are heard in turn."""
    folder.mkdir(exist_ok=True)
    checkpoints = Checkpoints(folder, lambda name, content: save(folder / name, content))
    if before is not None:
        assert same(checkpoints.newest(pytest.fail), before)
    names = [f"c{i}" for i in range(CLIENTS)]
    model = Weights(np.zeros(3, np.float32), np.zeros(0, np.float32))
    state = before.state if before else CFLState(ParameterTree.initial(model, names), {})
    for server_round in rounds:
        origin = np.full(LENGTH, server_round, np.float32)
        known, averages = dict(state.known), np.zeros((CLIENTS, LENGTH), np.float32)
        for i in range(share):
            client = (server_round * share + i) % CLIENTS
            vector = heard(client, server_round)
            known[names[client]] = KnownUpdate(server_round, vector, 1.0, 1.0, origin)
        for name, update in known.items():
            averages[names.index(name)] = update.vector / 2
        root = replace(state.tree.root, memory={"averages": averages})
        state = CFLState(state.tree.update(root), known)
        checkpoint = Checkpoint(server_round, state)
        checkpoints.save(checkpoint)
    return checkpoint


def save(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def same(one: Checkpoint, other: Checkpoint) -> bool:
    for name, update in one.state.known.items():
        twin = other.state.known[name]
        np.testing.assert_array_equal(update.vector, twin.vector)
        np.testing.assert_array_equal(update.origin, twin.origin)
    memories = [c.state.tree.root.memory["averages"] for c in (one, other)]
    np.testing.assert_array_equal(*memories)
    return one.state.known.keys() == other.state.known.keys()


def sizes(folder: Path) -> dict[int, int]:
    return {int(path.stem): path.stat().st_size for path in folder.glob("*.safetensors")}


def test_a_round_writes_what_it_heard_and_the_whole_can_be_read(tmp_path: Path) -> None:
    last = run(tmp_path, range(1, 41), share=5)
    files = sizes(tmp_path)
    every = 2 * CLIENTS * LENGTH * 4
    # New updates, their averages and one origin; sometimes what is left of an older file.
    assert max(files[n] for n in files if n > 30) < every / 5
    assert sum(files.values()) < 3 * every
    again = Checkpoints(tmp_path, lambda name, content: None).newest(pytest.fail)
    assert same(again, last)


def test_a_resumed_run_goes_on_with_the_files_there(tmp_path: Path) -> None:
    before = run(tmp_path, range(1, 12), share=5)
    last = run(tmp_path, range(12, 15), share=5, before=before)
    assert max(sizes(tmp_path)[n] for n in (12, 13, 14)) < CLIENTS * LENGTH
    assert same(Checkpoints(tmp_path, lambda *_: None).newest(pytest.fail), last)


def test_damage_in_an_earlier_file_is_noticed(tmp_path: Path) -> None:
    run(tmp_path, range(1, 11), share=5)
    oldest = tmp_path / f"{min(sizes(tmp_path)):06d}.safetensors"
    content = bytearray(oldest.read_bytes())
    content[-LENGTH] ^= 1
    oldest.write_bytes(content)
    told: list[str] = []
    with pytest.raises(RunFolderError, match="no whole checkpoint"):
        Checkpoints(tmp_path, lambda name, content: None).newest(told.append)
    assert len(told) == 2
    assert all(f"{oldest.name}, which it refers to, is damaged" in text for text in told)
