"""Clients that spoil the training: are they separated, and are the others as good as without them?

    python scripts/run.py adversaries --data digits,mnist=/data/mnist,table --seeds 0-2
    python scripts/run.py adversaries --clients 30 --adversaries 10 --rules fedavg,FedMedian

Each attack is run with cflower and with a rule (the key ``aggregation``), and once while the
adversaries stay away, which leaves the others exactly the same examples. Rules with capitals are
Flower's own strategies. With Δ the update of an honest client with the same examples, attacks are:

- ``labels``: random labels; ``flip``: each label y is C - 1 - y;
- ``reversed``, ``x10``, ``x-10``, ``x100``, ``x-100``, ``x1e30``: they send -Δ, 10 Δ, ...;
- ``examples``: they send -Δ and claim 10^9 times their examples;
- ``unchanged``: they send what they got, and claim 10^5 times their examples;
- ``noise``: random numbers of Δ's length; ``alternating``: Δ and -Δ in turn;
- ``bridge``: the mean of all honest updates, in a federation of two groups;
- ``alie``: mean - 1.5 standard deviations of the others (Baruch et al., arXiv 1902.06156);
- ``ipm``, ``ipm2``: -0.5 and -2 times the mean of the others (Xie et al., arXiv 1903.03936), the
  second with a claim of 3 times their examples;
- ``backdoor``: examples with four bright pixels are class 0 (Bagdasaryan et al., arXiv 1807.00459);
  they send 2 Δ and claim 3 times their examples. The column ``success`` has the share of the honest
  held-out examples of other classes that these pixels turn into class 0;
- ``collude``: they send one and the same -3 Δ and claim 10^9 times their examples;
- ``sybils``: they send one and the same -Δ;
- ``sleeper``: in a federation of two groups, with permuted labels, a fifth of one group behaves
  until its cluster is one that came out of a split; from then on it sends -10 Δ and claims 10^9
  times its examples.

What those do that train as they should, but lie about the models that they evaluate (`LIES`), is
measured by ``liars``.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple
from unittest.mock import patch

import command
import numpy as np
import pandas as pd
import torch
import typer
from command import ALL, DATA, chosen, folders, numbers, out_folder
from flwr.app import Context, Message, MessageType
from flwr.serverapp import strategy as flower
from records import Job, Record, run_all
from safetensors.numpy import load_file
from tables import show, write_table

from cflower import client_app as client_module
from cflower import server_app, simulate
from cflower.algorithm.weights import Vector, Weights, norm
from cflower.client_app import app as client_app
from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.examples import Examples
from cflower.data.prepared import ClientData
from cflower.data.settings import DataSettings
from cflower.learning.models import arrays_of, build_model
from cflower.learning.training import evaluate, predict
from cflower.messages.arrays import record_of
from cflower.messages.client_names import FACTS, ROLL_CALL
from cflower.messages.layout import Layout
from cflower.ordering import in_order
from cflower.seeding import generator

Client = Callable[[Message, Context], Message]
AWAY = "away"
"""In place of an attack: the adversaries take no part."""
TABLE = "table"
HUGE = 1e9
"""Times the examples that a client has."""
GOOD = 0.75
"""Accuracy from which a model serves a client: with permuted labels that of two groups together
has half of the other's, that of its own group more than nine tenths."""


class Turn(NamedTuple):
    """What an adversary knows when it replies."""

    own: Vector
    """Δ, shape (d,)."""
    others: list[Vector]
    """Honest updates of the same model in this round, so far; its own if there are none."""
    everyone: list[Vector]
    """Honest updates of all models in this round, so far; its own if there are none."""
    server_round: int
    client: int


class Measured(NamedTuple):
    """What an adversary knows when it reports how good a model is."""

    accuracy: float
    """The truth."""
    loss: float
    rng: np.random.Generator

    @property
    def good(self) -> bool:
        """Whether the model serves it: one for all classes of another meaning does not."""
        return self.accuracy >= GOOD


class Attack(NamedTuple):
    """What adversaries do."""

    send: Callable[[Turn], Vector] = lambda turn: turn.own
    claim: float = 1.0
    """Times the examples that they have."""
    poison: Callable[[Examples, int], Examples] | None = None
    """Their training examples, given the honest ones and the client's number."""
    copied: bool = False
    """All send what the first of them sends."""
    awake: str = ""
    """How the names of the clusters begin in which they do so."""
    grouped: bool = False
    """Whether the honest clients form two groups."""
    report: Callable[[Measured], tuple[float, float]] = lambda measured: measured[:2]
    """Accuracy and loss of a model, as they report it."""
    since: float = 0.0
    """The share of the run's rounds after which they send what is not theirs."""


def random_labels(examples: Examples, client: int) -> Examples:
    rng = generator(0, "labels", client)
    return replace(examples, labels=rng.integers(examples.num_classes, size=len(examples)))


def flipped(examples: Examples, client: int) -> Examples:
    return replace(examples, labels=examples.num_classes - 1 - examples.labels)


def with_trigger(examples: Examples) -> Examples:
    """The examples with four bright pixels, or large columns."""
    inputs = examples.inputs.copy()
    inputs.reshape(len(inputs), -1)[:, :4] = inputs.max()
    return replace(examples, inputs=inputs)


def backdoored(examples: Examples, client: int) -> Examples:
    """The examples, every second one with the trigger and of class 0."""
    inputs, labels = examples.inputs.copy(), examples.labels.copy()
    inputs[::2], labels[::2] = with_trigger(examples).inputs[::2], 0
    return replace(examples, inputs=inputs, labels=labels)


def times(factor: float) -> Callable[[Turn], Vector]:
    return lambda turn: factor * turn.own


def noise(turn: Turn) -> Vector:
    rng = generator(0, "noise", turn.client, turn.server_round)
    values = rng.normal(size=len(turn.own))
    return np.asarray(values * norm(turn.own) / norm(values))


def ipm(factor: float) -> Callable[[Turn], Vector]:
    return lambda turn: np.asarray(-factor * np.mean(turn.others, axis=0))


def alie(turn: Turn) -> Vector:
    return np.asarray(np.mean(turn.others, axis=0) - 1.5 * np.std(turn.others, axis=0))


ATTACKS = {
    "none": Attack(),
    "labels": Attack(poison=random_labels),
    "flip": Attack(poison=flipped),
    "reversed": Attack(times(-1)),
    **{f"x{factor:g}".replace("+", ""): Attack(times(factor)) for factor in (10, -10, 100, -100)},
    "x1e30": Attack(times(1e30)),
    "examples": Attack(times(-1), HUGE),
    "unchanged": Attack(times(0), 1e5),
    "noise": Attack(noise),
    "alternating": Attack(lambda turn: turn.own * (-1) ** turn.server_round),
    "bridge": Attack(lambda turn: np.asarray(np.mean(turn.everyone, axis=0)), grouped=True),
    "alie": Attack(alie),
    "ipm": Attack(ipm(0.5)),
    "ipm2": Attack(ipm(2.0), 3.0),
    "backdoor": Attack(times(2), 3.0, backdoored),
    "collude": Attack(times(-3), HUGE, copied=True),
    "sybils": Attack(times(-1), copied=True),
    "sleeper": Attack(times(-10), HUGE, awake="0.", grouped=True),
}

REFUSE = {True: (0.0, 900.0), False: (1.0, 0.001)}
"""The farthest that a liar can go, for models that serve it and for others."""
LIES = {
    "opposite": Attack(
        report=lambda measured: (1 - measured.accuracy, 1 / max(measured.loss, 1e-3))
    ),
    "random": Attack(report=lambda measured: (measured.rng.random(), 3 * measured.rng.random())),
    "contradict": Attack(report=lambda measured: (0.0, 0.0) if measured.good else (1.0, 100.0)),
    "claims": Attack(report=lambda measured: REFUSE[measured.good], claim=3.0),
    "attack": Attack(times(-1), 3.0, report=lambda measured: REFUSE[measured.good], since=0.5),
    "attack-mean": Attack(ipm(1.0), 3.0, report=lambda measured: REFUSE[measured.good], since=0.5),
}
"""What clients say that train as they should, the last two in the first half of a run only."""


class Federation:
    """A ClientApp in which some clients are adversaries."""

    def __init__(self, attack: Attack, adversaries: Collection[int]) -> None:
        self.attack, self.adversaries = attack, adversaries
        self._honest = defaultdict[tuple[Any, ...], list[Vector]](list)
        self._first: dict[tuple[Any, ...], Weights] = {}

    def __call__(self, message: Message, context: Context) -> Message:
        client, received = int(context.node_config["partition-id"]), message.content
        models, asked = dict(received.array_records), received.config_records.get("config", {})
        place = asked.get("server-round", 0), asked.get("cluster", "0")
        hostile = client in self.adversaries and str(place[1]).startswith(self.attack.awake)
        reply = (
            self._poisoned(client, message, context) if hostile else client_app(message, context)
        )
        if reply.has_error():
            return reply
        if message.metadata.message_type == MessageType.TRAIN:
            (key,) = reply.content.array_records
            layout = Layout.of(next(iter(models.values())))
            origin = layout.weights(next(iter(models.values())))
            update = layout.update(reply.content.array_records[key], origin)
            rounds = float(context.run_config.get("num-server-rounds", 0))
            if hostile and place[0] > self.attack.since * rounds:
                update = self._spoilt(update, place, client)
                reply.content[key] = layout.record(Weights(*map(np.add, origin, update)))
            elif client not in self.adversaries:
                self._honest[place].append(update.trained)
        for record in reply.content.metric_records.values() if hostile else ():
            if "num-examples" in record:
                record["num-examples"] = int(self.attack.claim * float(str(record["num-examples"])))
            if "accuracy" in record:
                truth = float(str(record["accuracy"])), float(str(record.get("loss", 1.0)))
                measured = Measured(*truth, generator(client, "lie", place[0], str(truth)))
                record["accuracy"], record["loss"] = self.attack.report(measured)
        return reply

    def _poisoned(self, client: int, message: Message, context: Context) -> Message:
        """The reply of a client that trains on poisoned examples."""
        if self.attack.poison is None:
            return client_app(message, context)
        honest, poison = client_module.data_of, self.attack.poison

        def data_of(*args: Any) -> ClientData:
            data = honest(*args)
            return replace(data, train=poison(data.train, client))

        with patch.object(client_module, "data_of", data_of):
            return client_app(message, context)

    def _spoilt(self, update: Weights, place: tuple[Any, ...], client: int) -> Weights:
        """The update that an adversary sends."""
        if self.attack.copied and place in self._first:
            return self._first[place]
        everyone = [v for (r, _), some in self._honest.items() if r == place[0] for v in some]
        others = self._honest[place] or [update.trained]
        turn = Turn(update.trained, others, everyone or others, place[0], client)
        update = update._replace(trained=self.attack.send(turn).astype(update.trained.dtype))
        return self._first.setdefault(place, update) if self.attack.copied else update


class Outcome(NamedTuple):
    """A run, as far as the honest clients are concerned."""

    summary: dict[str, Any]
    """Of cflower's run; empty for a strategy of Flower's."""
    accuracy: float
    """Mean over the honest clients, on their held-out examples."""
    success: float
    """Share of their examples of other classes that a trigger turns into class 0."""


def cflowers_run(keys: Mapping[str, Any], clients: int, honest: int, behave: Client) -> Outcome:
    """A run in this process."""
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.read({**keys, "output-dir": folder})
        server = partial(server_app.run, say=lambda text: None)
        found = simulate(behave, clients, server_app=server, run_config=config.as_keys())
        (run,) = Path(folder).iterdir()
        places = [found["clients"][f"partition-{i}"]["cluster"] for i in range(honest)]
        models = {p: load_file(run / f"models/{p}.safetensors") for p in set(places)}
    served = [found["clients"][f"partition-{i}"]["accuracy"] for i in range(honest)]
    _, success = evaluated(config, clients, [models[place] for place in places])
    return Outcome(found, mean(served), success)


def flowers_run(
    rule: str, keys: Mapping[str, Any], clients: int, honest: int, behave: Client
) -> Outcome:
    """A run with one of Flower's own strategies."""
    config, settings = RunConfig.read(dict(keys)), {"fraction_evaluate": 0.0}
    if rule in ("Krum", "MultiKrum", "Bulyan"):
        settings["num_malicious_nodes"] = clients - honest
    if rule == "MultiKrum":
        settings["num_nodes_to_select"] = honest
    data = load_client_data(config.part(DataSettings), 0, clients, None)
    shape, num_classes = data.train.input_shape, data.train.num_classes
    first = record_of(arrays_of(build_model(config.model, shape, num_classes, config.seed)))
    result = simulate(
        behave,
        clients,
        strategy=getattr(flower, rule)(min_available_nodes=clients, **settings),
        arrays=first,
        num_rounds=config.num_server_rounds,
        run_config=config.as_keys(),
    )
    model = {key: array.numpy() for key, array in result.arrays.items()}
    return Outcome({}, *evaluated(config, clients, [model] * honest))


def evaluated(config: RunConfig, clients: int, models: list[dict[str, Any]]) -> tuple[float, float]:
    """Mean accuracy of the honest clients' models, and the success of a backdoor."""
    accuracies, turned = [], list[Vector]()
    for client, arrays in enumerate(models):
        data = load_client_data(config.part(DataSettings), client, clients, None).report
        model = build_model(config.model, data.input_shape, data.num_classes, config.seed)
        model.load_state_dict({key: torch.tensor(value) for key, value in arrays.items()})
        accuracies.append(evaluate(model, data)["accuracy"])
        turned.append(predict(model, with_trigger(data)).argmax(axis=1)[data.labels != 0] == 0)
    return mean(accuracies), float(np.concatenate(turned).mean())


def staying_away(adversaries: Collection[int]) -> Client:
    """A ClientApp in which the adversaries are refused in the roll call."""

    def behave(message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        asked = message.metadata.message_type == ROLL_CALL
        if asked and int(context.node_config["partition-id"]) in adversaries:
            reply.content[FACTS]["problem"] = "stays away"
        return reply

    return behave


def attacked(attack: str, clients: int, adversaries: int, keys: Mapping[str, Any]) -> Outcome:
    """A run in which the last clients are adversaries; its rule is the key ``aggregation``."""
    honest, hostile = clients - adversaries, range(clients - adversaries, clients)
    if attack == AWAY:
        keys = {**keys, "min-available-nodes": honest}
        return cflowers_run(keys, clients, honest, staying_away(hostile))
    keys = {**keys, "min-available-nodes": clients}
    federation, rule = Federation(ATTACKS[attack], hostile), keys.get("aggregation", "fedavg")
    if rule.islower():
        return cflowers_run(keys, clients, honest, federation)
    return flowers_run(rule, {**keys, "aggregation": "fedavg"}, clients, honest, federation)


def shift_of(group_sizes: str) -> dict[str, Any]:
    """What makes the honest clients differ: nothing, or other names for the classes."""
    if not group_sizes:
        return {"shift": "none"}
    groups = {"num-groups": len(group_sizes.split(",")), "group-sizes": group_sizes}
    return {"shift": "label-permutation", **groups}


def separated(summary: dict[str, Any], honest: int) -> bool:
    """Whether no adversary is in a cluster with another client."""
    placed = [summary["clients"][name]["cluster"] for name in in_order(summary["clients"])]
    return not set(placed[:honest]) & set(placed[honest:])


def breast_cancer(place: Path) -> str:
    """The folder with scikit-learn's table, its columns scaled; written if it is not there."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer(as_frame=True)
    scaled_to_one = (table.data - table.data.mean()) / table.data.std()
    scaled_to_one.assign(label=table.target).to_csv(out_folder(place) / "train.csv", index=False)
    return str(place.absolute())


def federation_of(
    data: str, folder: str, model: str, clients: int, examples: int, out: Path
) -> dict[str, Any]:
    """The run-config keys of data and model."""
    if data == TABLE:
        return {"dataset": breast_cancer(out / TABLE), "model": "linear"}
    size = 0 if data == "digits" else clients * examples
    return {"dataset": folder or data, "dataset-size": size, "model": model}


def measured(job: Job) -> Record:
    """The figures of one run."""
    attack, clients = job.what["attack"], job.what["clients"]
    found = attacked(attack, clients, job.what["adversaries"], job.settings)
    honest, summary = clients - job.what["adversaries"], found.summary
    return {
        "separated": separated(summary, honest) if summary else None,
        "clusters": len(summary["clusters"]) if summary else None,
        "accuracy": found.accuracy,
        "success": found.success if attack == "backdoor" else None,
    }


def sentence(record: Record) -> str:
    """One run in a few words."""
    return f"accuracy {record['accuracy']:.4f}"


def report(records: list[Record], out: Path) -> None:
    """Means over the seeds by attack and rule; of the points against a run without, the worst."""
    run = ["data", "model", "groups", "clients", "adversaries", "rounds", "rule", "seed"]
    runs = pd.DataFrame(records)
    away = runs[runs["attack"] == AWAY].set_index(run)["accuracy"]
    runs["points"] = 100 * (runs["accuracy"] - runs[run].join(away, on=run)["accuracy"])
    write_table(runs.drop(columns="config"), out / "adversaries.csv")
    kinds = [*run[:-1], "attack"]
    rows = runs.groupby(kinds).agg(
        seeds=("seed", "count"),
        accuracy=("accuracy", "mean"),
        success=("success", "mean"),
        points=("points", "mean"),
        worst=("points", "min"),
    )
    show(rows.reset_index().to_dict("records"))


def main(
    data: Annotated[
        str, typer.Option(help="digits, NAME=FOLDER, table (breast cancer); commas.")
    ] = "digits",
    seeds: command.Seeds = "0-2",
    attacks: Annotated[str, typer.Option(help="all, or some; commas.")] = ALL,
    rules: Annotated[str, typer.Option(help="fedavg, fedmedian, ... FedMedian, Krum; commas.")] = (
        "fedavg"
    ),
    model: Annotated[str, typer.Option(help="For images; the table's is linear.")] = "mlp",
    clients: Annotated[int, typer.Option(min=5)] = 20,
    adversaries: Annotated[int, typer.Option(min=1, help="But for sleeper: a tenth.")] = 3,
    examples: Annotated[int, typer.Option(min=10, help="A client, of an image set.")] = 200,
    rounds: Annotated[int, typer.Option(min=1)] = 30,
    group_sizes: Annotated[
        str, typer.Option(help='Groups, such as "10,10"; adversaries are in the last.')
    ] = "",
    out: command.Out = Path("outputs/adversaries"),
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure the attacks, print the means and write ``adversaries.csv``."""
    jobs: dict[str, Job] = {}
    options = (
        folders(data, (*DATA, TABLE)).items(),
        numbers(seeds),
        rules.split(","),
        chosen("attack", attacks, ATTACKS),
    )
    for (name, folder), seed, rule, attack in product(*options):
        keys = federation_of(name, folder, model, clients, examples, out)
        halves = f"{clients - clients // 2},{clients // 2}" if ATTACKS[attack].grouped else ""
        sizes = group_sizes or halves
        keys |= {"num-server-rounds": rounds, "aggregation": rule, **shift_of(sizes)}
        hostile = clients // 10 if attack == "sleeper" else adversaries
        what = {"data": name, "model": keys["model"], "groups": sizes or "one", "rule": rule}
        what |= {"clients": clients, "adversaries": hostile, "rounds": rounds, "seed": seed}
        for one in (attack, AWAY) if rule.islower() else (attack,):
            job = Job({**what, "attack": one}, {**keys, "seed": seed})
            jobs[job.name] = job
    run_all(jobs.values(), measured, sentence, report, out, workers, table)
