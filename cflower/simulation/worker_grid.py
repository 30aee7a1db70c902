"""The in-process Grid with its clients in several processes, for all cores."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message, RecordDict
from threadpoolctl import threadpool_limits

from cflower.errors import FederationError
from cflower.messages.flower import identify
from cflower.simulation.inline_grid import (
    SERVER_NODE_ID,
    ClientFunction,
    Failure,
    InlineGrid,
    answered,
)

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

FOR_EACH_WORKER = 8
"""Messages in advance for each worker; bounds the number of replies in memory."""
Done = tuple[Message, RecordDict, Failure | None]
"""Of a worker: a client's reply, its state for the next message, and its exception."""


class WorkerGrid(InlineGrid):
    """Nodes spread over worker processes.

    A node goes to the worker that had it last and keeps its data, unless another one has less to
    do. Replies come in the order of their messages, so the result of a run depends neither on that
    nor on the number of workers.

    ``load`` returns the ClientApp in each of the ``workers`` processes and must be picklable: a
    function of a module, or a `functools.partial` of one. The modules in ``preload`` are imported
    once for all workers.
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
        self._workers = [
            ProcessPoolExecutor(1, processes, _begin, (load, run_id)) for _ in range(workers)
        ]
        self._running: dict[str, Future[Done]] = {}
        self._open: list[list[Future[Done]]] = [[] for _ in range(workers)]
        self._last = {node: node % workers for node in self._contexts}

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The reply to the first of these messages that is still open."""
        for message_id in islice(self._pending, FOR_EACH_WORKER * len(self._workers)):
            if message_id not in self._running:
                self._running[message_id] = self._submit(self._pending[message_id])
        return super().pull_messages(message_ids)

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.shutdown(cancel_futures=True)

    def _submit(self, message: Message) -> "Future[Done]":
        node = message.metadata.dst_node_id
        self._open = [[one for one in done if not one.done()] for done in self._open]
        lengths, last = [*map(len, self._open)], self._last[node]
        number = last if lengths[last] == min(lengths) else lengths.index(min(lengths))
        future = self._workers[number].submit(_work, message, self._contexts[node])
        self._open[number].append(future)
        self._last[node] = number
        return future

    def run_client(self, message: Message, context: Context) -> tuple[Message, Failure | None]:
        running = self._running.pop(message.metadata.message_id, None) or self._submit(message)
        try:
            reply, context.state, error = running.result()
        except BrokenProcessPool:
            raise FederationError(
                "A worker process of the simulation was killed, as happens when memory runs out: "
                "resume the run with fewer workers."
            ) from None
        return reply, error


def started_server(preload: Sequence[str]) -> "ForkServerContext":
    """The process that workers are forked from, which loads these modules and Flower meanwhile."""
    from multiprocessing.forkserver import ensure_running  # not on Windows

    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__, *preload])
    ensure_running()
    return processes


_app: ClientFunction
"""The ClientApp of a worker process."""


def _begin(load: Callable[[], ClientFunction], run_id: int) -> None:
    global _app
    identify(run_id, SERVER_NODE_ID)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent handles Ctrl-C
    _app = load()
    threadpool_limits(1)  # the cores are taken: more threads would wait for each other


def _work(message: Message, context: Context) -> Done:
    reply, error = answered(_app, message, context)
    return reply, context.state, error
