"""The in-process Grid with its clients in several processes, for all cores."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message, RecordDict
from threadpoolctl import threadpool_limits

from cflower.errors import ConfigError, FederationError
from cflower.messages.flower import identify
from cflower.simulation.inline_grid import (
    SERVER_NODE_ID,
    ClientFunction,
    Failure,
    InlineGrid,
    answered,
    bytes_of_arrays,
)

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

FOR_EACH_WORKER = 8
"""Messages that a worker has in advance, which bounds the number of replies in memory; of small
ones twice as many."""
SMALL = 4 * 10**6
"""Bytes of the arrays of a message of which a worker may get several at once."""
Done = tuple[Message, RecordDict, Failure | None]
"""The result of a worker: a client's reply, its state for the next message, and its exception."""
Handful = Sequence[tuple[Message, Context]]
"""Messages of one type with their contexts, which a worker answers one after another."""


class WorkerGrid(InlineGrid):
    """Nodes spread over worker processes.

    A worker that has little to do gets messages of the nodes that it had last, so that these keep
    their data; if there are none, others. A ClientApp that looks ahead gets several small messages
    at once. Replies come in the order of their messages, so the result of a run depends neither on
    that nor on the number of workers.

    ``load`` returns the ClientApp in each of the ``workers`` processes and must be picklable: a
    function of a module, or a `functools.partial` of one. The modules in ``preload`` are imported
    once for all workers. A ClientApp with a method ``share`` gets a folder that is the same in
    all of them and ends with the grid, for what only one of them needs to make.
    """

    def __init__(
        self,
        client_app: ClientFunction,
        num_nodes: int,
        run_config: Mapping[str, Any],
        run_id: int = 1,
        *,
        load: Callable[[], ClientFunction],
        workers: int,
        preload: Sequence[str] = (),
    ) -> None:
        super().__init__(client_app, num_nodes, run_config, run_id)
        processes = started_server(preload)
        self._folder = TemporaryDirectory(prefix="cflower-", ignore_cleanup_errors=True)
        start = load, run_id, Path(self._folder.name)
        self._workers = [ProcessPoolExecutor(1, processes, _begin, start) for _ in range(workers)]
        self._looks_ahead = hasattr(client_app, "look_ahead")
        self._running: dict[str, tuple[int, Future[dict[str, Done]]]] = {}
        self._open: list[dict[Future[dict[str, Done]], int]] = [{} for _ in range(workers)]
        self._last = {node: node % workers for node in self._contexts}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._deal()
        return super().pull_messages(message_ids)

    def close(self) -> None:
        """End the workers, each once it has answered the message at hand."""
        self._folder.cleanup()
        for worker in self._workers:
            worker.shutdown(cancel_futures=True)

    def _deal(self) -> None:
        """Give messages to workers with at most so many in advance, while memory allows."""
        most = FOR_EACH_WORKER * len(self._workers)
        while True:
            number = self._least_busy()
            if sum(self._open[number].values()) > FOR_EACH_WORKER:
                return
            messages = self._next_for(number)
            room = (most if len(messages) == 1 else 2 * most) - len(self._running)
            if not 0 < len(messages) <= room:
                return
            self._submit(number, messages)

    def _least_busy(self) -> int:
        self._open = [{f: n for f, n in one.items() if not f.done()} for one in self._open]
        lengths = [sum(one.values()) for one in self._open]
        return lengths.index(min(lengths))

    def _next_for(self, number: int) -> list[Message]:
        """Messages of one type for a worker, none to a node that another worker computes for."""
        coming = [*islice(self._pending.values(), 3 * FOR_EACH_WORKER * len(self._workers))]
        busy = {node for node, _ in self._running.values()}
        if not (free := [m for m in coming if m.metadata.dst_node_id not in busy]):
            return []
        kind = free[0].metadata.message_type
        share = ceil(sum(m.metadata.message_type == kind for m in coming) / len(self._workers))
        alike = [m for m in free if m.metadata.message_type == kind]
        alike.sort(key=lambda m: self._last[m.metadata.dst_node_id] != number)
        several = self._looks_ahead and bytes_of_arrays(alike[0]) <= SMALL
        return alike[: min(FOR_EACH_WORKER, share) if several else 1]

    def _submit(self, number: int, messages: Sequence[Message]) -> None:
        handful = [(message, self._contexts[message.metadata.dst_node_id]) for message in messages]
        future = self._workers[number].submit(_work, handful)
        self._open[number][future] = len(messages)
        for message in messages:
            node = message.metadata.dst_node_id
            self._running[message.metadata.message_id] = node, future
            self._last[node] = number

    def run_client(self, message: Message, context: Context) -> tuple[Message, Failure | None]:
        message_id = message.metadata.message_id
        if message_id not in self._running:
            self._submit(self._least_busy(), [message])
        _, future = self._running.pop(message_id)
        try:
            reply, context.state, error = future.result().pop(message_id)
        except BrokenProcessPool:
            raise FederationError(
                "A worker process of the simulation was killed, as happens when memory runs out: "
                "resume the run with fewer workers."
            ) from None
        return reply, error


def started_server(preload: Sequence[str]) -> "ForkServerContext":
    """The process that workers are forked from, which loads these modules and Flower meanwhile."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        raise ConfigError(
            "Got --workers, but this system cannot fork processes, as Windows cannot: leave it out."
        )
    from multiprocessing.forkserver import ensure_running

    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__, *preload])
    ensure_running()
    return processes


_app: ClientFunction
"""The ClientApp of a worker process."""
_folder: Path
"""The folder of all workers, while the grid is open."""


def _begin(load: Callable[[], ClientFunction], run_id: int, folder: Path) -> None:
    global _app, _folder
    identify(run_id, SERVER_NODE_ID)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent handles Ctrl-C
    _app, _folder = load(), folder
    if share := getattr(_app, "share", None):
        share(folder)
    threadpool_limits(1)  # the cores are taken: more threads would wait for each other


def _work(handful: Handful) -> dict[str, Done]:
    if look_ahead := getattr(_app, "look_ahead", None):
        look_ahead(handful)
    done = {}
    for message, context in handful:
        if not _folder.exists():  # the run was interrupted
            break
        reply, error = answered(_app, message, context)
        done[message.metadata.message_id] = reply, context.state, error
    return done
