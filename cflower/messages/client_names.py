"""Lasting names for the clients of any ClientApp, and what a ClientApp can be asked.

A ClientApp that does not know a message raises, and Flower prints its traceback; so it is found
out first, by looking at the app itself, which the ServerApp's bundle (FAB) carries too.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.object_ref import load_app

from cflower.simulation.inline_grid import InlineGrid

FACTS = "client"
"""Key of the ConfigRecord in which a client tells of itself; ``client-id`` in it is its name,
``problem`` a sentence that says why it cannot take part."""
ROLL_CALL = "query.roll_call"
EVALUATE = "evaluate.default"


def name_clients(app: ClientApp) -> ClientApp:
    """Give the clients of a ClientApp names that last: one line in a ClientApp of any framework.

    The name is ``client-id`` of the node config, else ``partition-<n>``, else the node id. Without
    it a client's name is its node id, which is another in every simulated run, and another after
    an unauthenticated SuperNode has restarted: such a run cannot be resumed.

    Parameters
    ----------
    app : ClientApp
        Is changed: it answers the query ``roll_call``.

    Returns
    -------
    ClientApp
        The same one.

    Examples
    --------
    >>> app = name_clients(ClientApp())
    """

    @app.query("roll_call")
    def roll_call(message: Message, context: Context) -> Message:
        node = context.node_config
        simulated = "num-partitions" in node and "data-path" not in node
        told = {"num_partitions": int(node["num-partitions"])} if simulated else {}
        return answer(message, client_id=client_name(context), **told)

    return app


def client_name(context: Context) -> str:
    """``client-id`` of the node config, else ``partition-<n>``, else the node id."""
    node = context.node_config
    if "client-id" in node:
        return str(node["client-id"])
    return f"partition-{node['partition-id']}" if "partition-id" in node else str(context.node_id)


def answer(message: Message, **facts: Any) -> Message:
    """A ClientApp's answer to the roll call; see `FACTS`."""
    record = ConfigRecord({key.replace("_", "-"): value for key, value in facts.items()})
    return Message(RecordDict({FACTS: record}), reply_to=message)


def functions_of(grid: Grid) -> frozenset[str] | None:
    """The message types that the run's ClientApp has functions for; None if that cannot be told.

    Parameters
    ----------
    grid : Grid

    Returns
    -------
    frozenset of str or None
        Each ``<category>.<action>``, such as `ROLL_CALL` and `EVALUATE`.
    """
    app = grid.client_app if isinstance(grid, InlineGrid) else bundled_client_app()
    if app is not None and not isinstance(app, ClientApp):
        return frozenset({ROLL_CALL, EVALUATE})  # a plain function is sent everything
    # Flower has no public way to ask a ClientApp this.
    return frozenset(getattr(app, "_registered_funcs", ())) or None


def bundled_client_app() -> ClientApp | None:
    """The ClientApp of the bundle that this ServerApp came in; None if there is none to be had.

    Flower puts the bundle's folder on ``sys.path`` of the ServerApp, in simulation and deployment.
    """
    for folder in sys.path:
        try:
            project = tomllib.loads((Path(folder or ".") / "pyproject.toml").read_text())
            reference = project["tool"]["flwr"]["app"]["components"]["clientapp"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        try:
            # Flower's own way, under its lock: the simulation engine loads the same module from
            # another thread, and would find it half imported.
            app = load_app(str(reference), ImportError, folder or ".")
        except Exception:  # a server may lack what a client needs, such as its framework
            return None
        return app if isinstance(app, ClientApp) else None
    return None
