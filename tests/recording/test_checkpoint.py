"""The content of checkpoints, and the files that they need."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cflower.algorithm.state import Ask, CFLState, KnownUpdate, Move, Role
from cflower.algorithm.tree import Cluster, ParameterTree, Status, Trial
from cflower.algorithm.weights import Weights
from cflower.changes.norm_history import NormHistory
from cflower.errors import RunFolderError
from cflower.messages.failures import FailureRecord
from cflower.messages.messenger import Sent
from cflower.runs import checkpoint
from cflower.runs.checkpoint import BLOCK, Checkpoints, digest_of, packed
from cflower.strategy.observers import Checkpoint

CLIENTS, LENGTH = 100, 10_000


def run(folder, rounds, share, before=None, checkpoints=None):
    """Write a checkpoint after each round, in which ``share`` clients reply in turn."""
    checkpoints = checkpoints or Checkpoints(folder)
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
            rng = np.random.default_rng([client, server_round])
            vector = rng.normal(size=LENGTH).astype(np.float32)
            known[names[client]] = KnownUpdate(server_round, vector, 1.0, 1.0, origin)
        for name, update in known.items():
            averages[names.index(name)] = update.vector / 2
        outputs = averages.reshape(CLIENTS, 10, -1)
        root = replace(state.tree.root, memory={"averages": averages, "outputs": outputs})
        state = CFLState(state.tree.update(root), known)
        last = Checkpoint(server_round, state)
        checkpoints.save(last)
    return last


def same(one, other):
    for name, update in one.state.known.items():
        twin = other.state.known[name]
        np.testing.assert_array_equal(update.vector, twin.vector)
        np.testing.assert_array_equal(update.origin, twin.origin)
    for kept, twin in zip(*(c.state.tree.root.memory.items() for c in (one, other)), strict=True):
        assert kept[0] == twin[0]
        np.testing.assert_array_equal(kept[1], twin[1])
    return one.state.known.keys() == other.state.known.keys()


def sizes(folder):
    return {int(path.stem): path.stat().st_size for path in folder.glob("*.safetensors")}


def test_the_last_two_checkpoints_are_whole_files(tmp_path):
    last = run(tmp_path, range(1, 9), share=5)
    assert sorted(sizes(tmp_path)) == [7, 8]
    one, other = sizes(tmp_path).values()
    assert 0.9 < one / other < 1.2
    assert same(Checkpoints(tmp_path).newest(pytest.fail), last)
    last = run(tmp_path, range(9, 11), share=5, before=last)
    assert sorted(sizes(tmp_path)) == [9, 10]
    assert same(Checkpoints(tmp_path).newest(pytest.fail), last)


def test_an_array_that_clients_share_is_written_once(tmp_path):
    run(tmp_path, [1], share=CLIENTS)
    (written,) = sizes(tmp_path).values()
    vectors, averages, outputs, origin = CLIENTS, CLIENTS, CLIENTS, 1
    assert written < 1.1 * 4 * LENGTH * (vectors + averages + outputs + origin)


@given(st.integers(1, 40_000), st.integers(0, 300), st.integers(2, 5))
@settings(deadline=None, max_examples=15)
def test_a_body_that_leaves_share_is_written_once_and_read_to_the_bit(body, output, count):
    rng = np.random.default_rng([body, output, count])
    common, sent = rng.normal(size=body).astype(np.float32), np.zeros(7)
    models = [
        Weights(np.concatenate([common, rng.normal(size=output).astype(np.float32)]), sent)
        for _ in range(count)
    ]
    leaves = [Cluster(f"0.{i}", (f"c{i}",), model) for i, model in enumerate(models)]
    root = Cluster("0", ("c0",), models[0], children=tuple(leaf.name for leaf in leaves))
    tree = ParameterTree({cluster.name: cluster for cluster in (root, *leaves)})
    with TemporaryDirectory() as folder:
        Checkpoints(Path(folder)).save(Checkpoint(1, CFLState(tree)))
        read = Checkpoints(Path(folder)).newest(pytest.fail).state.tree.clusters
        (written,) = sizes(Path(folder)).values()
    for name, cluster in tree.clusters.items():
        assert read[name].model.trained.tobytes() == cluster.model.trained.tobytes()
        assert read[name].model.trained.dtype == np.float32
    own_blocks = min(body, BLOCK) + output
    assert written < 4 * (body + count * own_blocks) + 10_000


def test_the_state_and_the_outstanding_asks_are_read_as_they_were_written(tmp_path):
    model = Weights(np.zeros(3, np.float32), np.zeros(1, np.float32))
    trial = Trial(2, 4, (("a",), ("b", "c")))
    join = Trial(1, 1, (("a",), ("b",)), Status.JOINED, "a reason")
    root = Cluster("0", ("a", "b", "c"), model, 0, ("0.2", "0.3"), 2, rounds=5, weight=2.5)
    root = replace(root, trial=trial, undone=(join,))
    first = Cluster("0.2", ("a",), model, 2, edge={"a": model.trained}, memory={"steady": 2})
    second = Cluster("0.3", ("b", "c"), model, 2, optimizer={"momentum": model.trained})
    tree = ParameterTree({c.name: c for c in (root, first, second)}, {"c": "0"})
    known = {"a": KnownUpdate(3, model.trained, 1.0, 10.0, model.trained, 0.5, 0.25)}
    norms = {"a": NormHistory("0.2", 4, 0.1, 0.3, 1, 2.5, "0")}
    moves = (Move(3, "b", "0.2", "0.3", "a reason"),)
    memory = {"moves": norms, "splits": {"0": 7}}
    state = CFLState(tree, known, moves, absent=("c",), first=model, memory=memory)
    outstanding = tuple(
        Sent(Ask(client, "0", role, 3, part="decide", number=2), {"arrays": model})
        for client, role in zip("abcd", Role, strict=True)
    )
    failures = FailureRecord().met("abc").met("ab")
    written = Checkpoint(3, state, failures, outstanding=outstanding)
    Checkpoints(tmp_path).save(written)
    read = Checkpoints(tmp_path).newest(pytest.fail)
    assert [sent.ask for sent in read.outstanding] == [sent.ask for sent in outstanding]
    assert all(isinstance(sent.ask.role, Role) for sent in read.outstanding)
    assert [s.models["arrays"].trained.tolist() for s in read.outstanding] == [[0.0] * 3] * 4
    root = read.state.tree.root
    assert (root.trial, root.undone) == (trial, (join,))
    assert (read.state.memory, read.state.moves) == (memory, moves)
    assert read.failures == failures
    assert packed(read, digest_of) == packed(written, digest_of)


def test_a_criterion_may_remember_numbers_of_numpy(tmp_path):
    memory = {"rounds": np.int64(2), "norms": [np.float32(0.5), np.bool_(True)]}
    model = Weights(np.zeros(3, np.float32), np.zeros(0, np.float32))
    root = Cluster("0", ("a",), model, memory=memory)
    Checkpoints(tmp_path).save(Checkpoint(1, CFLState(ParameterTree({"0": root}))))
    read = Checkpoints(tmp_path).newest(pytest.fail).state.tree.root.memory
    assert read == {"rounds": 2, "norms": (0.5, True)}


@pytest.mark.parametrize("number", [16, 18])
def test_a_checkpoint_of_another_format_is_refused_in_one_sentence(tmp_path, monkeypatch, number):
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "CHECKPOINT_FORMAT", f"cflower-checkpoint-{number}")
        run(tmp_path, range(1, 3), share=5)
    warnings: list[str] = []
    with pytest.raises(RunFolderError) as refused:
        Checkpoints(tmp_path).newest(warnings.append)
    problem = f"its format is 'cflower-checkpoint-{number}', not 'cflower-checkpoint-17'"
    assert len(warnings) == 2
    assert all(problem in text for text in warnings)
    assert str(refused.value) == (
        f"There is no whole checkpoint in {tmp_path} ({problem}): copy the whole run folder, or "
        "run it again."
    )


def test_one_damaged_file_leaves_one_checkpoint_whole(tmp_path):
    before = run(tmp_path, range(1, 10), share=5)
    last = run(tmp_path, range(10, 11), share=5, before=before)
    used = []
    for path in sorted(tmp_path.glob("*.safetensors")):
        content = path.read_bytes()
        path.write_bytes(content[:-LENGTH] + bytes([content[-LENGTH] ^ 1]) + content[1 - LENGTH :])
        warnings: list[str] = []
        found = Checkpoints(tmp_path).newest(warnings.append)
        assert same(found, {9: before, 10: last}[found.server_round])
        assert all("damaged" in text or "wrong checksum" in text for text in warnings)
        used.append(found.server_round)
        path.write_bytes(content)
    assert sorted(used) == [9, 10]


def test_a_run_that_is_over_keeps_the_last_of_large_checkpoints(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    last = run(tmp_path, range(1, 12), share=5, checkpoints=checkpoints)
    before = sizes(tmp_path)
    checkpoints.close()
    assert sizes(tmp_path) == before
    monkeypatch.setattr(checkpoint, "LARGE_CHECKPOINTS", sum(before.values()))
    checkpoints.close()
    assert [path.name for path in tmp_path.glob("*.sha256")] == ["000011.sha256"]
    assert sorted(sizes(tmp_path)) == [11]
    assert same(Checkpoints(tmp_path).newest(pytest.fail), last)
    run(tmp_path, range(12, 15), share=5, before=last)
