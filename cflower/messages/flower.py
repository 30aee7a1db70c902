"""Every use of what Flower does not document, so that a new version of it needs changes here only.

The exception is its logger, which every module uses.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

from flwr.app import Context, Message
from flwr.client.mod.utils import make_ffn
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.logger import ConsoleHandler as ConsoleHandler
from flwr.supercore.logger import console_handler as console_handler
from flwr.supercore.object_ref import load_app as load_app
from flwr.supercore.run import Run as Run
from flwr.supercore.task_identity import TaskIdentity


def functions_of(app: object) -> Mapping[str, Callable[..., Message]]:
    """A ClientApp's functions by the type of their messages, such as ``train.default``."""
    older = app._call if isinstance(app, ClientApp) else None
    return both_by(older) | getattr(app, "_registered_funcs", {})


def both_by(older: Callable[..., Message] | None) -> dict[str, Callable[..., Message]]:
    """The messages that the one function of a ``client_fn`` takes."""
    return {f"{kind}.default": older for kind in ("train", "evaluate")} if older else {}


def has_client_fn(app: object) -> bool:
    """Whether a ClientApp is of Flower's older API, with one function that makes clients."""
    return isinstance(app, ClientApp) and app._call is not None


def answer_query(app: ClientApp, action: str, function: Callable[..., Message]) -> None:
    """Let a ClientApp answer a query, also one that has a ``client_fn`` for all messages."""
    older, app._call = app._call, None
    app.query(action)(function)
    if older is None:
        return
    app._registered_funcs |= both_by(older)  # their mods show whether a training adds noise
    kind = f"query.{action}"

    def call(message: Message, context: Context) -> Message:
        asked = message.metadata.message_type == kind
        return (function if asked else older)(message, context)

    app._call = call


def mods_of(function: Any) -> Iterator[Any]:
    """The mods around a function of a ClientApp, the outermost first.

    Each is in the closure of the function that calls it, next to the one that it calls.
    """
    while getattr(function, "__module__", "") == make_ffn.__module__:
        held = inspect.getclosurevars(function).nonlocals
        yield held.get("_mod")
        function = held.get("_ffn")


def is_remote(grid: Grid) -> bool:
    """Whether the nodes of a grid are processes of their own, and no simulation's."""
    # Loads databases for a second; without its module loaded, no grid is an HttpGrid.
    module = sys.modules.get("flwr.superlink.grid")
    return module is not None and isinstance(grid, module.HttpGrid)


def identify(run_id: int, node_id: int) -> None:
    """Set what Flower's Message constructor reads of the process."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, node_id


def give_id(message: Message) -> str:
    """A new id for a message, which otherwise the SuperLink gives it."""
    message.metadata.__dict__["_message_id"] = message_id = str(uuid4())
    return message_id
