"""Clients that spoil the training: are they separated, and are the others as good as without them?

    python scripts/run.py adversaries --data digits,mnist=/data/mnist,table --seeds 0-2
    python scripts/run.py adversaries --clients 30 --adversaries 10 --rules fedavg,FedMedian

Each attack is run with cflower and with a rule (the key ``aggregation``), and while the adversaries
stay away, which leaves the others exactly the same examples. Rules with capitals are Flower's own
strategies. `ATTACKS` are the attacks; with Δ the update of an honest client with the same examples:

- ``labels``: random labels; ``flip``: each label y is C - 1 - y;
- ``reversed``, ``x10``, ``x-10``, ``x100``, ``x-100``, ``x1e30``: they send -Δ, 10 Δ, ...;
- ``examples``: they send -Δ and claim 10^9 times their examples;
- ``unchanged``: they send what they got, and claim 10^5 times their examples;
- ``noise``: random numbers of Δ's length; ``alternating``: Δ and -Δ in turn;
- ``silent``: they answer the roll call and nothing else; three rounds wait 15 s for them;
- ``bridge``: the mean of all honest updates, in a federation of two groups;
- ``alie``: mean - 1.5 standard deviations of the others (Baruch et al., arXiv 1902.06156);
- ``ipm``, ``ipm2``: -0.5 and -2 times the mean of the others (Xie et al., arXiv 1903.03936), the
  second with a claim of 3 times their examples;
- ``backdoor``: examples with four bright pixels are class 0 (Bagdasaryan et al., arXiv 1807.00459);
  they send 2 Δ and claim 3 times their examples. The column ``success`` has the share of the honest
  held-out examples of other classes that these pixels turn into class 0;
- ``collude``: a fifth of all sends one and the same -3 Δ and claims 10^9 times its examples;
- ``sybils``: they send one and the same -Δ;
- ``sleeper``: in a federation of two groups, with permuted labels, a fifth of one group behaves
  until its cluster is one that came out of a split; from then on it sends -10 Δ and claims 10^9
  times its examples.
"""

import csv
import tempfile
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from logging import WARNING
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import typer
from command import folders, numbers, quieten_flower
from flwr.app import Context, Message, MessageType
from flwr.serverapp import strategy as flower
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors.numpy import load_file
from tables import write_table

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
from cflower.messages import messenger
from cflower.messages.arrays import record_of
from cflower.messages.client_names import FACTS, ROLL_CALL
from cflower.messages.layout import Layout
from cflower.ordering import in_order
from cflower.seeding import generator
from cflower.simulation.inline_grid import FIRST_NODE_ID, InlineGrid

Client = Callable[[Message, Context], Message]
HUGE = 1e9
"""Times the examples that a client has."""


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
    silent: bool = False


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
    "labels": Attack(poison=random_labels),
    "flip": Attack(poison=flipped),
    "reversed": Attack(times(-1)),
    **{f"x{factor:g}".replace("+", ""): Attack(times(factor)) for factor in (10, -10, 100, -100)},
    "x1e30": Attack(times(1e30)),
    "examples": Attack(times(-1), HUGE),
    "unchanged": Attack(times(0), 1e5),
    "noise": Attack(noise),
    "alternating": Attack(lambda turn: turn.own * (-1) ** turn.server_round),
    "silent": Attack(silent=True),
    "bridge": Attack(lambda turn: np.asarray(np.mean(turn.everyone, axis=0)), grouped=True),
    "alie": Attack(alie),
    "ipm": Attack(ipm(0.5)),
    "ipm2": Attack(ipm(2.0), 3.0),
    "backdoor": Attack(times(2), 3.0, backdoored),
    "collude": Attack(times(-3), HUGE, copied=True),
    "sybils": Attack(times(-1), copied=True),
    "sleeper": Attack(times(-10), HUGE, awake="0.", grouped=True),
}


class Federation:
    """A ClientApp in which the last clients are adversaries."""

    def __init__(self, attack: Attack, adversaries: range) -> None:
        self.attack, self.adversaries = attack, adversaries
        self._honest = defaultdict[tuple[Any, ...], list[Vector]](list)
        self._first: dict[tuple[Any, ...], Weights] = {}
        self._sent = defaultdict[tuple[Any, ...], list[Vector]](list)

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
            if hostile:
                update = self._spoilt(update, place, client)
                reply.content[key] = layout.record(Weights(*map(np.add, origin, update)))
            elif client not in self.adversaries:
                self._honest[place].append(update.trained)
            self._sent[place].append(update.trained)
        for record in reply.content.metric_records.values() if hostile else ():
            if "num-examples" in record:
                record["num-examples"] = int(self.attack.claim * float(str(record["num-examples"])))
        return reply

    def opposed(self) -> float:
        """Share of rounds and clusters with an update at more than 90° to the members' median."""
        found = []
        for updates in self._sent.values():
            matrix = np.stack(updates).clip(-1e9, 1e9)
            found.append(bool((matrix @ np.median(matrix, axis=0) < 0).any()))
        return mean(found) if found else 0.0

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


class Lossy(InlineGrid):
    """Loses all messages to these clients but for the roll call."""

    def __init__(self, *args: Any, lost: Container[int]) -> None:
        super().__init__(*args)
        self.lost = lost

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """The server takes them all for sent."""
        ids = list(super().push_messages(messages))
        for number, message in list(self._pending.items()):
            client = message.metadata.dst_node_id - FIRST_NODE_ID
            if client in self.lost and message.metadata.message_type != ROLL_CALL:
                del self._pending[number]
        return ids


class Outcome(NamedTuple):
    """A run, as far as the honest clients are concerned."""

    summary: dict[str, Any]
    """Of cflower's run; empty for a strategy of Flower's."""
    accuracy: float
    """Mean over the honest clients, on their held-out examples."""
    success: float
    """Share of their examples of other classes that a trigger turns into class 0."""
    warned: bool = False
    """Whether a warning named clients that count for much less than they claim."""
    opposed: float = 0.0
    """Share of rounds and clusters with an update at more than 90° to the members' median."""


def one_run(
    keys: Mapping[str, Any], clients: int, honest: int, behave: Client, lost: Container[int] = ()
) -> Outcome:
    """A run in this process."""
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.read({**keys, "output-dir": folder})
        server = partial(server_app.run, say=lambda text: None)
        options = {"run_config": config.as_keys(), "grid_type": partial(Lossy, lost=lost)}
        with patch.object(messenger, "log") as logged:
            found = simulate(behave, clients, server_app=server, **options)
        (run,) = Path(folder).iterdir()
        places = [found["clients"][f"partition-{i}"]["cluster"] for i in range(honest)]
        models = {p: load_file(run / f"models/{p}.safetensors") for p in set(places)}
    served = [found["clients"][f"partition-{i}"]["accuracy"] for i in range(honest)]
    judged = evaluated(config, clients, [models[place] for place in places])
    warned = any(one.args[:2] == (WARNING, messenger.LOWERED) for one in logged.mock_calls)
    return Outcome(found, mean(served), judged[1], warned)


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


def without(clients: int, adversaries: int, keys: Mapping[str, Any], attack: str) -> Outcome:
    """A run in which the last clients stay away."""
    honest = clients - adversaries
    keys = {**shift_of(attack), **keys, "min-available-nodes": honest}

    def behave(message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        asked = message.metadata.message_type == ROLL_CALL
        if asked and int(context.node_config["partition-id"]) >= honest:
            reply.content[FACTS]["problem"] = "stays away"
        return reply

    return one_run(keys, clients, honest, behave)


def attacked(attack: str, clients: int, adversaries: int, keys: Mapping[str, Any]) -> Outcome:
    """A run in which the last clients are adversaries; its rule is the key ``aggregation``."""
    honest, hostile = clients - adversaries, range(clients - adversaries, clients)
    keys = {**shift_of(attack), **keys, "min-available-nodes": clients}
    federation, lost = Federation(ATTACKS.get(attack, Attack()), hostile), range(0)
    if federation.attack.silent:
        keys["round-timeout"], lost = 15.0, hostile
    rule = keys.get("aggregation", "fedavg")
    if rule.islower():
        found = one_run(keys, clients, honest, federation, lost)
    else:
        found = flowers_run(rule, {**keys, "aggregation": "fedavg"}, clients, honest, federation)
    return found._replace(opposed=federation.opposed())


def shift_of(attack: str) -> dict[str, Any]:
    """What makes the honest clients differ: nothing, or what makes a split."""
    if ATTACKS.get(attack, Attack()).grouped:
        return {"shift": "label-permutation", "num-groups": 2}
    return {"shift": "none"}


def separated(summary: dict[str, Any], honest: int) -> bool:
    """Whether no adversary is in a cluster with another client."""
    placed = [summary["clients"][name]["cluster"] for name in in_order(summary["clients"])]
    return not set(placed[:honest]) & set(placed[honest:])


def places(data: str, model: str, scratch: Path) -> dict[str, dict[str, Any]]:
    """The run-config keys of each data set; ``table`` is written out of scikit-learn."""
    found, rest = {}, [part for part in data.split(",") if part.strip() != "table"]
    for name, folder in folders(",".join(rest)).items() if rest else ():
        found[name] = {"dataset": folder or name, "model": model}
    if len(rest) < len(data.split(",")):
        from sklearn.datasets import load_breast_cancer

        table = load_breast_cancer(as_frame=True)
        scaled_to_one = (table.data - table.data.mean()) / table.data.std()
        scaled_to_one.assign(label=table.target).to_csv(scratch / "train.csv", index=False)
        found["table"] = {"dataset": str(scratch), "model": "linear"}
    return found


def measured(
    setting: Mapping[str, str], keys: Mapping[str, Any], known: dict[tuple[str, ...], float]
) -> dict[str, str]:
    """One run as a line of the table; ``known`` has the accuracies without the adversaries."""
    attack, rule = setting["attack"], setting["rule"]
    clients, bad = int(setting["clients"]), int(setting["adversaries"])
    rest = tuple(value for key, value in setting.items() if key != "attack")
    if rule.islower() and rest not in known:
        known[rest] = without(clients, bad, keys, attack).accuracy
    found = attacked(attack, clients, bad, keys)
    summary = found.summary or {"clusters": ["0"], "splits": (), "excluded": ()}
    line = {
        "separated": bool(found.summary) and separated(found.summary, clients - bad),
        "clusters": len(summary["clusters"]),
        "first_split": min((one["round"] for one in summary["splits"]), default=""),
        "excluded": len(summary["excluded"]),
        "personal": any(step["accepted"] for step in summary.get("personal", {}).values()),
        "warned": found.warned,
        "opposed": f"{found.opposed:.2f}",
        "accuracy": f"{found.accuracy:.4f}",
        "without": f"{known[rest]:.4f}" if rest in known else "",
        "success": f"{found.success:.4f}" if attack == "backdoor" else "",
    }
    return {**setting, **{key: str(value) for key, value in line.items()}}


def means(lines: Sequence[Mapping[str, str]]) -> Table:
    """Mean accuracies over the seeds by attack and rule; of a backdoor, its success as well."""
    rules = list(dict.fromkeys(line["rule"] for line in lines))
    table = Table("data", "groups", "hostile", "attack", "seeds", *rules, "without")
    by_row = defaultdict[tuple[str, ...], list[Mapping[str, str]]](list)
    for one in lines:
        data, hostile = f"{one['data']} {one['model']}", f"{one['adversaries']} of {one['clients']}"
        by_row[data, one["groups"], hostile, one["attack"]].append(one)
    for row, some in by_row.items():
        cells = []
        for rule in rules:
            its = [line for line in some if line["rule"] == rule]
            cells.append("/".join(average(its, key) for key in ("accuracy", "success")).strip("/"))
        seeds = len({line["seed"] for line in some})
        table.add_row(*row, str(seeds), *cells, average(some, "without"))
    return table


def average(lines: Sequence[Mapping[str, str]], key: str) -> str:
    values = [float(line[key]) for line in lines if line[key]]
    return f"{mean(values):.3f}".lstrip("0") if values else ""


def main(
    data: Annotated[
        str, typer.Option(help="digits, NAME=FOLDER, table (breast cancer); commas.")
    ] = "digits",
    seeds: Annotated[str, typer.Option(help='Such as "0-2".')] = "0-2",
    attacks: Annotated[str, typer.Option(help="all, or some, or none; commas.")] = "all",
    rules: Annotated[str, typer.Option(help="fedavg, fedmedian, ... FedMedian, Krum; commas.")] = (
        "fedavg"
    ),
    model: Annotated[str, typer.Option(help="For images; the table's is linear.")] = "mlp",
    clients: Annotated[int, typer.Option(min=5)] = 20,
    adversaries: Annotated[
        int, typer.Option(min=1, help="But for collude and sleeper: a fifth, a tenth.")
    ] = 3,
    examples: Annotated[int, typer.Option(min=10, help="A client, of an image set.")] = 200,
    rounds: Annotated[int, typer.Option(min=1)] = 30,
    group_sizes: Annotated[
        str, typer.Option(help='Groups, such as "10,10"; adversaries are in the last.')
    ] = "",
    alpha: Annotated[float, typer.Option(min=0, help="Of Dirichlet labels; 0: iid.")] = 0.0,
    out: Annotated[
        Path | None, typer.Option(help="A CSV file for the runs; those in it are not run again.")
    ] = None,
) -> None:
    """Measure the attacks and print the means."""
    quieten_flower()
    lines: list[dict[str, str]] = []
    if out and out.is_file():
        lines = list(csv.DictReader(out.read_text().splitlines()))
    known: dict[tuple[str, ...], float] = {}
    asked = tuple(ATTACKS) if attacks == "all" else tuple(attacks.split(","))
    with tempfile.TemporaryDirectory() as scratch:
        there = places(data, model, Path(scratch))
        jobs = list(product(there, numbers(seeds), rules.split(","), asked))
        for name, seed, rule, attack in track(jobs, "Measuring", console=Console(stderr=True)):
            # The table has 569 rows.
            among = clients // 2 if name == "table" else clients
            bad = max(1, adversaries * among // clients)
            # Of all clients, and of the last ones' group.
            bad = {"collude": among // 5, "sleeper": among // 10}.get(attack, bad)
            size = clients * examples if name not in ("digits", "table") else 0
            keys = {**there[name], "dataset-size": size, "seed": seed, "num-server-rounds": rounds}
            if sizes := group_sizes.split(",") if group_sizes else []:
                keys |= {"shift": "label-permutation", "group-sizes": group_sizes}
                keys["num-groups"] = len(sizes)
            if alpha:
                keys |= {"partitioner": "dirichlet", "dirichlet-alpha": alpha}
            keys["aggregation"] = rule
            groups = group_sizes or (shift_of(attack) | keys).get("num-groups", 1)
            groups = f"Dirichlet {alpha:g}" if alpha else groups
            of = {"groups": groups, "data": name, "model": keys["model"], "rounds": rounds}
            of |= {"rule": rule, "attack": attack, "clients": among, "adversaries": bad}
            setting = {key: str(value) for key, value in {**of, "seed": seed}.items()}
            if bad and not any(setting.items() <= line.items() for line in lines):
                lines.append(measured(setting, keys, known))
                if out:
                    write_table(lines, out)
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(means(lines))
