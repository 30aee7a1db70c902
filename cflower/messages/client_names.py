"""Lasting names for the clients of any ClientApp, and the functions that a ClientApp has.

A ClientApp raises for a message that it has no function for, and Flower prints a traceback. Its
functions are therefore looked up in the app, which the ServerApp's bundle (FAB) contains too.
"""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import takewhile
from logging import WARNING
from pathlib import Path
from sysconfig import get_path
from typing import TYPE_CHECKING, Any, NamedTuple

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod, message_size_mod
from flwr.serverapp import Grid
from flwr.supercore import log

from cflower.messages.flower import answer_query, functions_of, load_app, mods_of
from cflower.ordering import line

if TYPE_CHECKING:
    from cflower.algorithm.state import Task

FACTS = "client"
"""Key of the ConfigRecord with a client's facts: ``client-id`` is its name, ``problem`` a sentence
that explains why it cannot take part."""
PARTS_APART = "parts-apart"
"""The fact, in `FACTS` of a reply to the final evaluation, that no example decides and is reported:
the client measures on the part that ``part`` in the config of a message asks for."""
ROLL_CALL = "query.roll_call"
EVALUATE = "evaluate.default"
EVALUATE_PATH = "evaluate.way"
"""The message with all models on a client's path, under their clusters' names; its reply has a
MetricRecord for each of them, for the best one, and for the average of their predictions."""
ADAPT_MESSAGE = "train.adapt"
"""The message for a whole personal step: the leaf's model, the number of trainings and the client's
share in its mix."""


class TaskKind(NamedTuple):
    """The message with one model by which a task of the algorithm is sent."""

    message_type: str
    trains: bool
    """Whether the client trains, and replies with its model; else it replies with metrics only."""
    older: str = ""
    """The beginning of its records' names in Flower's API before its messages (`older_api`)."""


TASKS: "Mapping[Task, TaskKind]" = {
    "train": TaskKind("train", trains=True, older="fit"),
    "evaluate": TaskKind("evaluate", trains=False, older="evaluate"),
    "adapt": TaskKind(ADAPT_MESSAGE, trains=True),
}
ADAPTS = "adapts"
"""The fact that a client has a function for `ADAPT_MESSAGE`."""
EVALUATE_ONLY = "evaluate-only"
"""The fact that a client never trains; see `only_evaluates`."""
PART = "part"
"""In a message's config: the examples to measure on, ``"decide"`` or ``"report"``."""
TRAINED_ON = "train"
"""The value of `PART` for the examples that a client trains on."""
CONTROL = "control"
"""The record with SCAFFOLD's c in a message to train, with the change of c_i in the reply."""
METHOD = "method"
"""In a message's config: the method by which cflower's own clients train."""
PREPARATION = "preparation"
"""In a message's config: how cflower's own clients prepare the columns of a table, as JSON."""
TABLE, CLASSES_HERE = "table", "classes-here"
"""The facts about a client's table: what its columns are, as JSON, and the classes that occur."""
BEST, ENSEMBLE = "best", "ensemble"
"""Keys in the reply to `EVALUATE_PATH`, next to the clusters' names."""
BEST_CLUSTER = "best-cluster"
"""Key in the `FACTS` of that reply: the cluster with the best model."""
COMMITMENT = "permutation"
"""The fact with a commitment to the client's seed; clients without it do not permute weights."""
LONGEST_NAME = 200
UNKNOWN_APP = object()
"""In place of a ClientApp that cannot be imported on this machine."""
NOT_IMPORTED = (
    "The ClientApp %s cannot be imported here (%s). So it is not known whether it names its "
    "clients (cflower.name_clients) or adds noise: they go by their node ids, and there is no "
    "personal step. Install what it imports on this machine too."
)
HARMLESS = (arrays_size_mod, message_size_mod)
"""Flower's mods that only look at a message."""
NO_NOISE = "adds_no_noise"
"""The attribute, true, by which a mod that cflower does not know declares that it adds none."""
MOD = (
    "The mod %s on the ClientApp's training may clip updates or add noise, so that every training "
    "costs privacy: nothing is trained beyond the ordinary rounds, and splits are final. "
    "If a mod of your own does not, say so by its attribute: mod.adds_no_noise = True."
)


def name_clients(app: ClientApp) -> ClientApp:
    """Give the clients of a ClientApp names that last: one line in a ClientApp of any framework.

    The name is ``client-id`` of the node config, else ``partition-<n>``, else the node id, which
    alone changes in every simulated run, and after each restart of an unauthenticated SuperNode:
    without names a run cannot be resumed.

    Parameters
    ----------
    app : ClientApp
        Gets a function for the query ``roll_call``.

    Returns
    -------
    ClientApp
        The given one.

    Examples
    --------
    >>> app = name_clients(ClientApp())
    """

    def roll_call(message: Message, context: Context) -> Message:
        node, name = context.node_config, client_name(context)
        facts = {"client_id": name, "evaluate_only": only_evaluates(context, name)}
        if "num-partitions" in node and "data-path" not in node:
            facts["num_partitions"] = int(node["num-partitions"])
        return answer(message, **facts)

    answer_query(app, "roll_call", roll_call)
    return app


def client_name(context: Context) -> str:
    node = context.node_config
    if "client-id" in node:
        return str(node["client-id"])
    return f"partition-{node['partition-id']}" if "partition-id" in node else str(context.node_id)


def only_evaluates(context: Context, name: str) -> bool:
    """Whether the client of this name never trains.

    That is so with ``evaluate-only=true`` in its node config, or if ``evaluate-only`` of the run
    config, names separated by commas, names it.
    """
    named = str(context.run_config.get(EVALUATE_ONLY, "")).split(",")
    return bool(context.node_config.get(EVALUATE_ONLY)) or name in map(str.strip, named)


def is_name(value: Any) -> bool:
    """Whether a client or a metric may have this name in files, logs and tables."""
    # safetensors has its own entry __metadata__ in files with an entry for each client.
    usable = isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and value.isprintable()
    return usable and value != "__metadata__"


def answer(message: Message, **facts: Any) -> Message:
    """A ClientApp's answer to the roll call; see `FACTS`."""
    record = ConfigRecord({key.replace("_", "-"): value for key, value in facts.items()})
    return Message(RecordDict({FACTS: record}), reply_to=message)


def has_function(grid: Grid, message_type: str, *, if_unknown: bool) -> bool:
    """Whether the run's ClientApp has a function for messages of this type, such as `EVALUATE`.

    A grid in process has the app as its attribute ``client_app``.
    """
    app = app_of(grid)
    if not (app is None or app is UNKNOWN_APP or isinstance(app, ClientApp)):
        return True  # a plain function gets every message
    functions = functions_of(app)
    return message_type in functions if functions else if_unknown


def adds_noise(grid: Grid) -> bool:
    """Whether a training of the run's clients may cost differential privacy.

    So may one with any mod that is not known to add no noise, which is logged: Flower's for
    clipping and local noise, those made of them, and those of the app's own. A mod's name shows
    nothing.
    """
    app = app_of(grid)
    if app is UNKNOWN_APP:
        return True
    for mod in mods_of_training(app):
        if not is_harmless(mod):
            log(WARNING, MOD, line(getattr(mod, "__name__", type(mod).__name__), 60))
            return True
    return False


def mods_of_training(app: Any) -> Iterator[Any]:
    for kind, function in functions_of(app).items():
        if kind.startswith("train."):
            yield from mods_of(function)


def is_harmless(mod: Any) -> bool:
    """Whether a mod is known to add no noise; what a subclass adds is not known.

    >>> is_harmless(message_size_mod), is_harmless(lambda message, context, call_next: None)
    (True, False)
    """
    while isinstance(mod, partial):
        mod = mod.func
    declared = vars(type(mod)).get(NO_NOISE) or getattr(mod, "__dict__", {}).get(NO_NOISE)
    return mod in HARMLESS or declared is True


def app_of(grid: Grid) -> Any:
    """The run's ClientApp: the grid's own in process, else that of the bundle; None without."""
    return getattr(grid, "client_app", None) or bundled_client_app()


def bundled_client_app() -> Any:
    """The ClientApp of the ServerApp's bundle, which Flower puts on ``sys.path``; None without."""
    for folder, project in projects():
        try:
            reference = str(project["tool"]["flwr"]["app"]["components"]["clientapp"])
        except (KeyError, TypeError):
            continue
        try:
            # Flower's own loader takes its lock: the simulation engine imports the same module in
            # another thread, which would expose it half imported.
            return load_app(reference, ImportError, folder)
        except Exception as error:  # a server may lack what a client needs, such as its framework
            warn_once(NOT_IMPORTED, reference, line(error))
            return UNKNOWN_APP
    return None


def projects() -> Iterator[tuple[str, dict[str, Any]]]:
    """The folders with a ``pyproject.toml`` where Flower puts its app on ``sys.path``: first.

    After Python's own folder come installed packages, in editable form also other Flower apps.
    """
    for folder in takewhile(lambda folder: folder != get_path("stdlib"), sys.path):
        try:
            text = (Path(folder or ".") / "pyproject.toml").read_text(encoding="utf-8")
            yield folder or ".", tomllib.loads(text)
        except (OSError, ValueError):
            continue


@cache
def warn_once(text: str, *words: str) -> None:
    log(WARNING, text, *words)
