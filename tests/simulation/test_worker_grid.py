"""Clients in several processes: the same replies in the same order as in one."""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from threadpoolctl import threadpool_info

from cflower.errors import FederationError
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid
from cflower.simulation.worker_grid import WorkerGrid


def client(fail: int, message: Message, context: Context) -> Message:
    """Counts its messages; one client fails."""
    number = context.node_config["partition-id"]
    if number == fail:
        raise ValueError(f"client {number} is broken")
    counted = context.state.config_records.get("count", ConfigRecord({"n": 0}))
    context.state["count"] = ConfigRecord({"n": counted["n"] + 1})
    told = MetricRecord({"count": counted["n"] + 1, "client": number, "process": os.getpid()})
    return Message(RecordDict({"metrics": told}), reply_to=message)


def loaded(fail: int) -> Any:
    """The client as a worker loads it."""
    return partial(client, fail)


def replies(grid: InlineGrid) -> Iterator[Message]:
    """Two messages to each of five nodes, the second half pulled after all of the first."""
    for _ in range(2):
        messages = [Message(RecordDict(), FIRST_NODE_ID + i, "train") for i in range(5)]
        waiting = set(grid.push_messages(messages))
        while waiting:
            for reply in grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                yield reply


def told(reply: Message) -> Any:
    if reply.has_error():
        return reply.error.reason
    metrics = reply.content.metric_records["metrics"]
    return metrics["client"], metrics["count"], reply.metadata.src_node_id


def test_replies_states_and_failures_are_those_of_one_process() -> None:
    with closing(WorkerGrid(loaded(3), 5, {}, load=partial(loaded, 3), workers=2)) as grid:
        there = list(replies(grid))
    assert [told(r) for r in there] == [told(r) for r in replies(InlineGrid(loaded(3), 5, {}))]
    of_node: dict[int, set[Any]] = {}
    for reply in there:
        if not reply.has_error():
            metrics = reply.content.metric_records["metrics"]
            of_node.setdefault(metrics["client"], set()).add(metrics["process"])
    assert all(len(processes) == 1 for processes in of_node.values())
    assert len(set.union(*of_node.values())) == 2
    assert os.getpid() not in set.union(*of_node.values())


def dying(message: Message, context: Context) -> Message:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def load_dying() -> Any:
    """A client whose process is ended from outside."""
    return dying


def test_a_worker_that_is_killed_ends_the_run_in_words() -> None:
    with (
        closing(WorkerGrid(dying, 1, {}, load=load_dying, workers=1)) as grid,
        pytest.raises(FederationError, match="fewer workers"),
    ):
        list(replies(grid))


def undisturbed(message: Message, context: Context) -> Message:
    os.kill(os.getpid(), signal.SIGINT)
    threads = [pool["num_threads"] for pool in threadpool_info()]
    told = MetricRecord({"threads": threads})
    return Message(RecordDict({"metrics": told}), reply_to=message)


def load_undisturbed() -> Any:
    """A client that somebody wants to stop with Ctrl-C."""
    return undisturbed


def test_a_worker_goes_on_after_ctrl_c_and_computes_in_one_thread() -> None:
    with closing(WorkerGrid(undisturbed, 1, {}, load=load_undisturbed, workers=1)) as grid:
        try:
            reply, _ = [r for r in replies(grid) if not r.has_error()]
        except KeyboardInterrupt:
            pytest.fail("the worker was stopped")
    assert set(reply.content.metric_records["metrics"]["threads"]) == {1}
