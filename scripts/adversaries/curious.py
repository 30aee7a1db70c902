"""A server that only listens: what do permuted replies of a linear model tell it?

    python scripts/run.py curious --seeds 0-4 --out outputs/curious

20 clients train the model ``linear`` on the digits with ``privacy = "permutation"``: 650 entries in
an order that the server does not know. It knows how many inputs and classes there are, and uses:

- The gradients of softmax sum to 0 over the classes. So do, in every update, the entries of one
  input, and the biases: which entries belong together is the null space of the replies.
- Biases learn how frequent the classes are, and then stop: of all groups of entries, theirs has the
  smallest mean over all replies, relative to single replies.
- A client's bias of a class grows against the other clients' as it has more examples of the class.

The classes remain without names, in one order for all clients. Figures, by the number of replies:
``groups``, the share of the inputs (and biases) whose entries are found exactly, of those that
training moves; ``biases``, whether the group taken for the biases is theirs; ``r``, Pearson's, of
the biases' mean updates and the shares of the classes among the clients' examples, less their means
over the clients.
"""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import command
import numpy as np
import typer
from command import numbers
from flwr.app import Context, Message, MessageType
from numpy.typing import NDArray
from records import Job, Record, run_all
from tables import show, table_of, write_table

from adversaries.federation import records_of
from cflower.algorithm.weights import Vector
from cflower.client_app import app as client_app
from cflower.config import RunConfig, read_overrides
from cflower.data.client_data import load_client_data
from cflower.data.settings import DataSettings
from cflower.messages.layout import Layout
from cflower.privacy.permutation import permuted

CLIENTS, CLASSES, INPUTS = 20, 10, 64
SEED = b"the clients' secret"
COLUMNS = ("seed", "replies", "groups", "biases", "r")


class Listener:
    """cflower's ClientApp, and the update of every reply as the server sees it."""

    def __init__(self) -> None:
        self.updates: list[Vector] = []
        self.clients: list[int] = []
        self.layout: Layout | None = None

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type != MessageType.TRAIN:
            return client_app(message, context)
        (sent,) = records_of(message)  # read before the client turns it back in place
        self.layout = Layout.of(sent)
        model = self.layout.weights(sent)
        reply = client_app(message, context)
        self.updates.append(self.layout.update(*records_of(reply), model).trained)
        self.clients.append(int(context.node_config["partition-id"]))
        return reply


def groups_found(updates: NDArray[np.floating]) -> list[NDArray[np.intp]]:
    """The entries of one input, or the biases, as far as the replies show them, shape (n, entries).

    In the projection on the null space, entries that belong together share 1 / classes.
    """
    moving = np.flatnonzero(updates.any(axis=0))
    null_space = np.linalg.svd(updates[:, moving])[2][-len(moving) // CLASSES :]
    together = null_space.T @ null_space > 1 / CLASSES / 2
    sets = {tuple(moving[row]) for row in together if row.sum() == CLASSES}
    return [np.array(entries) for entries in sorted(sets)]


def consistency(updates: NDArray[np.floating]) -> float:
    """The squared length of the mean update, as a share of the mean squared length."""
    return float((updates.mean(axis=0) ** 2).sum() / (updates**2).sum(axis=1).mean())


def learned(
    updates: NDArray[np.floating], places: NDArray[np.intp], shares: NDArray[np.floating]
) -> Record:
    """The figures of some replies, client after client.

    ``places``, (entries,), are the true ones, the biases last, and ``shares``, (clients, classes).
    """
    inputs = np.where(places < INPUTS * CLASSES, places % INPUTS, INPUTS)
    groups = groups_found(updates)
    exact = sum(len(set(inputs[group])) == 1 for group in groups)
    if not groups:
        return {"groups": 0.0, "biases": False, "r": 0.0}
    biases = min(groups, key=lambda group: consistency(updates[:, group]))
    biases = biases[np.argsort(places[biases])]  # names for the classes, to judge by
    mean = updates[:, biases].reshape(-1, len(shares), CLASSES).mean(axis=0)
    r = np.corrcoef(mean.ravel() - np.tile(mean.mean(axis=0), len(shares)), shares.ravel())[0, 1]
    return {
        "groups": exact / len(set(inputs[updates.any(axis=0)])),
        "biases": set(inputs[biases]) == {INPUTS},
        "r": float(r),
    }


def run_one(job: Job) -> Record:
    """What the server knows after every ten rounds of one run."""
    from cflower import server_app, simulate

    listener = Listener()
    with TemporaryDirectory() as folder:
        secret = Path(folder, "seed")
        secret.write_bytes(SEED)
        secret.chmod(0o600)
        keys = {**job.settings, "output-dir": folder, "seed-file": str(secret)}
        server = partial(server_app.run, say=lambda text: None)
        simulate(listener, CLIENTS, server_app=server, run_config=keys)
    layout, order = listener.layout, np.argsort(listener.clients, kind="stable")
    assert layout is not None
    updates = np.array(listener.updates)[order].reshape(CLIENTS, -1, layout.num_trained)
    rounds = range(10, updates.shape[1] + 1, 10)
    facts = true_places(layout), label_shares(RunConfig.read(job.settings))
    seen = {n: updates[:, :n].swapaxes(0, 1).reshape(-1, layout.num_trained) for n in rounds}
    return {"rows": [{"replies": len(some)} | learned(some, *facts) for some in seen.values()]}


def true_places(layout: Layout) -> NDArray[np.intp]:
    """The place in the clients' model of each entry that is sent; the biases are the last array."""
    numbered = {
        entry.key: np.arange(entry.place.start, entry.place.stop, dtype="f4").reshape(entry.shape)
        for entry in layout.entries
    }
    moved = permuted(numbered, SEED)
    return np.concatenate([moved[entry.key].ravel() for entry in layout.entries]).astype(np.intp)


def label_shares(config: RunConfig) -> NDArray[np.floating]:
    """Each client's shares of the classes, less the means over the clients, shape (m, classes)."""
    settings = config.part(DataSettings)
    parts = [load_client_data(settings, i, CLIENTS, None).train for i in range(CLIENTS)]
    shares = np.array([np.bincount(p.labels, minlength=CLASSES) / len(p.labels) for p in parts])
    return shares - shares.mean(axis=0)


def sentence(record: Record) -> str:
    """One run in a few words."""
    row = record["rows"][-1]
    return f"{100 * row['groups']:.0f} % of the groups, r = {row['r']:.2f}"


def report(records: list[Record], out: Path) -> None:
    """Means over the seeds; every run as ``curious.csv``."""
    lines = [{"seed": record["seed"], **row} for record in records for row in record["rows"]]
    runs = table_of(lines)
    write_table(runs, out / "curious.csv", COLUMNS)
    of_replies = runs.groupby("replies")
    rows = (
        of_replies[["groups", "biases", "r"]].mean().join(of_replies["r"].min().rename("least r"))
    )
    show(rows.reset_index().to_dict("records"))


def curious(
    seeds: command.Seeds = "0-4",
    rounds: Annotated[int, typer.Option(min=10)] = 40,
    more: command.More = "",
    out: command.Out = Path("outputs/curious"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure, print the means and write ``curious.csv``."""
    keys: dict[str, Any] = {
        "method": "federated",
        "model": "linear",
        "shift": "none",
        "privacy": "permutation",
        "min-available-nodes": CLIENTS,
        "num-server-rounds": rounds,
        **read_overrides([more], "--set"),
    }
    configs = ({**keys, "seed": seed} for seed in numbers(seeds))
    jobs = (
        Job({"what": "curious", "seed": c["seed"]}, RunConfig.read(c).as_keys()) for c in configs
    )
    run_all(jobs, run_one, sentence, report, out, workers, table)
