"""Clients in several processes: the same replies in the same order as in one."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from threadpoolctl import threadpool_info

from cflower.errors import FederationError
from cflower.messages.arrays import record_of
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid
from cflower.simulation.worker_grid import SMALL, WorkerGrid

pytestmark = pytest.mark.slow  # every worker loads Flower


def client(fail: int, message: Message, context: Context) -> Message:
    """Counts its messages; one client fails."""
    number = context.node_config["partition-id"]
    if number == fail:
        raise ValueError(f"client {number} is broken")
    counted = context.state.config_records.get("count", ConfigRecord({"n": 0}))
    context.state["count"] = ConfigRecord({"n": counted["n"] + 1})
    metrics = MetricRecord({"count": counted["n"] + 1, "client": number, "process": os.getpid()})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def the(function: Any) -> Any:
    """The client as a worker loads it."""
    return function


FAILING = partial(client, 3)


def replies(grid: InlineGrid) -> Iterator[Message]:
    """Two messages to each of five nodes, the second half pulled after all of the first."""
    for _ in range(2):
        messages = [Message(RecordDict(), FIRST_NODE_ID + i, "train") for i in range(5)]
        waiting = set(grid.push_messages(messages))
        while waiting:
            for reply in grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                yield reply


def content_of(reply: Message) -> Any:
    if reply.has_error():
        return reply.error.reason
    metrics = reply.content.metric_records["metrics"]
    return metrics["client"], metrics["count"], reply.metadata.src_node_id


def test_replies_states_and_failures_are_those_of_one_process():
    with closing(WorkerGrid(FAILING, 5, {}, load=partial(the, FAILING), workers=2)) as grid:
        there = list(replies(grid))
    expected = [content_of(reply) for reply in replies(InlineGrid(FAILING, 5, {}))]
    assert [content_of(reply) for reply in there] == expected
    metrics = [r.content.metric_records["metrics"] for r in there if not r.has_error()]
    processes = {one["process"] for one in metrics}
    assert len(processes) == 2 and os.getpid() not in processes


def slow(message: Message, context: Context) -> Message:
    time.sleep(0.2)
    return client(-1, message, context)


def test_a_rounds_clients_are_dealt_to_whoever_is_free():
    with closing(WorkerGrid(slow, 8, {}, load=partial(the, slow), workers=2)) as grid:
        for _ in range(2):  # the nodes of one round are all of the same worker at first
            messages = [Message(RecordDict(), FIRST_NODE_ID + i, "train") for i in (0, 2, 4, 6)]
            waiting, done = set(grid.push_messages(messages)), []
            while waiting:
                done += grid.pull_messages(waiting)
                waiting.discard(done[-1].metadata.reply_to_message_id)
            processes = [r.content.metric_records["metrics"]["process"] for r in done]
            assert sorted(map(processes.count, set(processes))) == [2, 2]


class Together:
    """A client that says with how many others its message was seen, and the folder it shares."""

    seen: dict[str, int]
    folder: Path

    def share(self, folder: Path) -> None:
        self.folder = folder

    def look_ahead(self, coming: Sequence[tuple[Message, Context]]) -> None:
        self.seen = {message.metadata.message_id: len(coming) for message, _ in coming}

    def __call__(self, message: Message, context: Context) -> Message:
        reply = client(-1, message, context)
        metrics = reply.content.metric_records["metrics"]
        metrics["together"] = self.seen.pop(message.metadata.message_id)
        reply.content["folder"] = ConfigRecord({"folder": str(self.folder)})
        return reply


def test_a_worker_gets_its_share_of_a_round_at_once_and_one_folder_with_the_others():
    app = Together()
    with closing(WorkerGrid(app, 40, {}, load=partial(the, app), workers=2)) as grid:
        found, folders = [], set()
        for count in (7, 40):
            messages = [Message(RecordDict(), FIRST_NODE_ID + i, "train") for i in range(count)]
            for reply in grid.send_and_receive(messages):
                metrics = reply.content.metric_records["metrics"]
                found.append((metrics["client"], metrics["together"]))
                folders.add(reply.content.config_records["folder"]["folder"])
        assert [number for number, _ in found] == [*range(7), *range(40)]
        sizes = [size for _, size in found]
        assert sorted(sizes[:7]) == [3] * 3 + [4] * 4 and set(sizes[7:]) == {8}
        (folder,) = map(Path, folders)
        assert folder.is_dir()
    assert not folder.exists()


def test_large_messages_come_one_at_a_time():
    app, large = Together(), record_of({"w": np.zeros(SMALL // 4, np.float32)})
    with closing(WorkerGrid(app, 4, {}, load=partial(the, app), workers=1)) as grid:
        content = RecordDict({"arrays": large})
        messages = [Message(content, FIRST_NODE_ID + i, "train") for i in range(4)]
        replies = grid.send_and_receive(messages)
        assert [r.content.metric_records["metrics"]["together"] for r in replies] == [1] * 4


class Noting(Together):
    """It leaves a file for each message that it answers."""

    def __init__(self, folder: Path) -> None:
        self.noted = folder

    def __call__(self, message: Message, context: Context) -> Message:
        (self.noted / str(context.node_id)).touch()
        time.sleep(0.2)
        return super().__call__(message, context)


def test_a_worker_ends_before_it_has_answered_all_that_it_has(tmp_path):
    app = Noting(tmp_path)
    with closing(WorkerGrid(app, 8, {}, load=partial(the, app), workers=1)) as grid:
        messages = [Message(RecordDict(), FIRST_NODE_ID + i, "train") for i in range(8)]
        grid.push_messages(messages)
        grid._deal()
        while not any(tmp_path.iterdir()):
            time.sleep(0.01)
    assert len(list(tmp_path.iterdir())) < 8


def test_a_node_with_two_messages_has_its_state_of_the_first_for_the_second():
    app = partial(client, -1)
    with closing(WorkerGrid(app, 3, {}, load=partial(the, app), workers=2)) as grid:
        messages = [Message(RecordDict(), FIRST_NODE_ID + i, "train") for i in (0, 0, 1, 2, 0)]
        answers = [r.content.metric_records["metrics"] for r in grid.send_and_receive(messages)]
        assert [(one["client"], one["count"]) for one in answers] == [
            (0, 1), (0, 2), (1, 1), (2, 1), (0, 3)
        ]  # fmt: skip


def dying(message: Message, context: Context) -> Message:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_a_killed_worker_ends_the_run_with_its_cure():
    with (
        closing(WorkerGrid(dying, 1, {}, load=partial(the, dying), workers=1)) as grid,
        pytest.raises(FederationError, match="fewer workers"),
    ):
        list(replies(grid))


def undisturbed(message: Message, context: Context) -> Message:
    os.kill(os.getpid(), signal.SIGINT)
    metrics = MetricRecord({"threads": [pool["num_threads"] for pool in threadpool_info()]})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def test_a_worker_ignores_ctrl_c_and_computes_in_one_thread():
    with closing(WorkerGrid(undisturbed, 1, {}, load=partial(the, undisturbed), workers=1)) as grid:
        try:
            reply, _ = [r for r in replies(grid) if not r.has_error()]
        except KeyboardInterrupt:
            pytest.fail("the worker was stopped")
    assert set(reply.content.metric_records["metrics"]["threads"]) == {1}
