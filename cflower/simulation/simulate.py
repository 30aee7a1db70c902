"""Any ServerApp or Strategy with any ClientApp in this one process: no Ray, no SuperLink."""

from collections.abc import Callable, Mapping
from contextlib import closing
from logging import getLogger
from secrets import randbelow
from typing import Any

from flwr.app import ArrayRecord, Context, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from cflower.messages.flower import ConsoleHandler
from cflower.settings import require
from cflower.simulation.inline_grid import SERVER_NODE_ID, ClientFunction, InlineGrid


def simulate(
    client_app: ClientFunction,
    num_clients: int,
    *,
    server_app: Callable[[Grid, Context], Any] | None = None,
    strategy: Strategy | None = None,
    arrays: ArrayRecord | None = None,
    num_rounds: int = 3,
    run_config: Mapping[str, Any] | None = None,
    grid_type: Callable[..., InlineGrid] = InlineGrid,
    **start: Any,
) -> Any:
    """Run a Flower app in this process, its clients one after another.

    A debugger can stop in the objects that ``flwr run`` would load. An exception of a client
    becomes an error reply, as everywhere in Flower; one of the server is raised here.

    Parameters
    ----------
    client_app : ClientApp
        Or any function from a message and a context to the reply.
    num_clients : int
        Client i has the node config ``{"partition-id": i, "num-partitions": num_clients}``.
    server_app : ServerApp, optional
        Or any function of a grid and a context. Either this or `strategy`.
    strategy : flwr.serverapp.strategy.Strategy, optional
        `ClusteredFL`, Flower's ``FedAvg`` or any other. Flower's own sample clients with the
        global ``random``: seed it for reproducible runs.
    arrays : ArrayRecord, optional
        With `strategy`: the initial model.
    num_rounds : int
        With `strategy`.
    run_config : mapping, optional
        The ``context.run_config`` of ServerApp and ClientApp, a copy for each.
    grid_type : callable
        A subclass of `InlineGrid`, for absent or slow clients and lost replies.
    **start
        With `strategy`: further arguments of its ``start``, such as ``evaluate_fn``.

    Returns
    -------
    flwr.serverapp.strategy.Result
        The strategy's result; with `server_app` its return value (a ServerApp: None).

    Raises
    ------
    ConfigError
        If there is no client, or not either `strategy` with `arrays` or `server_app` alone.

    Examples
    --------
    The model is one number; client i trains it to be i.

    >>> import numpy as np
    >>> from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    >>> from flwr.clientapp import ClientApp
    >>> from flwr.serverapp.strategy import FedAvg
    >>> app = ClientApp()
    >>> @app.train()
    ... def train(message, context):
    ...     wanted = np.array([float(context.node_config["partition-id"])])
    ...     arrays = ArrayRecord({"w": Array(wanted)})
    ...     metrics = MetricRecord({"num-examples": 1})
    ...     return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
    >>> result = simulate(
    ...     app, 5, strategy=FedAvg(fraction_evaluate=0.0), num_rounds=1,
    ...     arrays=ArrayRecord({"w": Array(np.zeros(1))}),
    ... )
    >>> result.arrays["w"].numpy()
    array([2.])
    """
    require(num_clients > 0, f"Got num_clients={num_clients}, but expected at least one client.")
    arguments = {"server_app": server_app, "strategy": strategy, "arrays": arrays, **start}
    given = [name for name, value in arguments.items() if value is not None]
    require(
        given == ["server_app"] or given[:2] == ["strategy", "arrays"],
        f"Got {', '.join(given) or 'neither server_app nor strategy'}, but expected either "
        "strategy= with arrays=, its initial model, or server_app= alone.",
    )
    needed = getattr(strategy, "min_available_nodes", 0)
    require(
        needed <= num_clients,
        f"Got num_clients={num_clients}, but the strategy waits for min_available_nodes={needed}: "
        "give it at most as many.",
    )
    for handler in getLogger("flwr").handlers:
        if isinstance(handler, ConsoleHandler):
            handler.colored = handler.stream.isatty()  # a file has no use for colour codes
    config, run_id = dict(run_config or {}), randbelow(10**6)
    with closing(grid_type(client_app, num_clients, config, run_id)) as grid:
        if server_app is not None:
            return server_app(grid, Context(run_id, SERVER_NODE_ID, {}, RecordDict(), config))
        assert strategy is not None and arrays is not None  # checked above
        return strategy.start(grid, arrays, num_rounds, **start)
