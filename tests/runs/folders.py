"""Run folders of made-up runs, written by the real `Recorder`."""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from cflower import Recorder
from cflower.algorithm.criteria import Decision, Outcome
from cflower.algorithm.state import CFLState, Move
from cflower.algorithm.tree import ParameterTree
from cflower.config import RunConfig
from cflower.messages.layout import Layout
from cflower.messages.metrics import ClientMetrics
from cflower.messages.roll_call import RollCall
from cflower.metric import Metric
from cflower.runs.ways import OWN_METHODS
from cflower.server_app import strategy_of
from cflower.strategy.observers import RunStart
from cflower.strategy.reports import ClientResult, FinalReport, RoundReport

HELD_OUT = 20
SPLIT_AT = 0.3
"""Share of the rounds after which the root is split in half."""
MOVES = (
    Move(9, "client-1", "0.0", "0.1", "its update was 31 times as long"),
    Move(14, "client-2", "0.0", "0.1", "most like those of 0.1"),
    Move(14, "client-3", "0.0", "0.1", "most like those of 0.1"),
)
"""Of client 1 alone, then of two at once."""
LAYOUT = Layout.of(ArrayRecord({"w": Array(np.zeros(4, np.float32))}))
MODEL = LAYOUT.weights(ArrayRecord({"w": Array(np.zeros(4, np.float32))}))


def made_up_run(
    path: Path,
    clients: int = 8,
    rounds: int = 20,
    *,
    name: str = "client-{}",
    classes: tuple[str, ...] = ("a", "b", "c"),
    refused: int = 2,
    finished: bool = True,
    data: bool = True,
    problems: bool = True,
    baselines: Mapping[str, float] | None = None,
    moves: Sequence[Move] = (),
    central: Mapping[str, float] | None = None,
    **keys: Any,
) -> Path:
    """Write the folder of a run whose root is split once into its two groups, which stay.

    ``name`` is a client's, with its number. In ``refused`` rounds before the split the sides were
    not apart enough. ``baselines`` has what each client gets under those that were measured,
    ``moves`` the clients that go to the other child, and ``central`` the metrics of each round's
    central evaluation. ``keys`` are run-config fields.
    """
    names = [name.format(i) for i in range(clients)]
    thresholds = {"split_criterion": "norms", "eps1": 0.9, "eps2": 1.6, "gamma_max": 0.68}
    config = RunConfig(num_server_rounds=rounds, **thresholds | keys)
    settings = strategy_of(config, None, RollCall(), ()).settings
    recorder = Recorder(path.parent, config.as_keys(), say=lambda text: None)
    recorder.path = path
    facts = {n: look(classes) | {"group": i // (clients // 2)} for i, n in enumerate(names)}
    recorder.on_start(RunStart(rounds, Metric(), settings, LAYOUT, facts if data else {}))
    for report in made_up_rounds(names, rounds, refused, problems, moves):
        recorder.on_round(replace(report, central=central or {}))
    if finished:
        tree = report.state.tree
        results = {n: served(n, i, tree, facts[n]) for i, n in enumerate(names)}
        planned = dict.fromkeys([*OWN_METHODS, *(baselines or {})])
        recorder.baselines = None if baselines is None else planned
        recorder.on_end(FinalReport(report.state, results, rounds))
        for baseline, value in (baselines or {}).items():
            levels = {"0": ClientMetrics({"accuracy": value}, HELD_OUT)}
            results = {n: ClientResult("0", 10.0, levels) for n in names}
            curve = {r: {"accuracy": value - 0.3 / r} for r in range(2, rounds + 1)}
            trained = FinalReport(report.state, results, rounds, by_round=curve)
            recorder.add_baseline(baseline, trained)
    return path


def look(classes: tuple[str, ...]) -> dict[str, Any]:
    """The preview of a client's data in a simulation."""
    image = {"sample-images": bytes(range(64)) * 2, "sample-shape": [8, 8, 1]}
    counts = {"label-counts": [3, 2, 1][: len(classes)], "sample-labels": [0, 1]}
    return {"class-names": list(classes), **counts, **image}


def made_up_rounds(
    names: list[str], rounds: int, refused: int, problems: bool, moves: Sequence[Move]
) -> Iterator[RoundReport]:
    """The report of the strategy for each round."""
    rng = np.random.default_rng(0)
    tree = ParameterTree.initial(MODEL, names)
    half = len(names) // 2
    sides = {"0.0": names[:half], "0.1": names[half:]}
    split = max(refused + 1, round(SPLIT_AT * rounds))
    for server_round in range(1, rounds + 1):
        trained = tree
        decisions = tuple(
            decided(leaf.name, server_round, names, split, refused, rng) for leaf in tree.leaves
        )
        if server_round == split:
            root = replace(tree.root, children=tuple(sides), split_round=split, rounds=split - 1)
            children = (
                replace(root, name=child, members=tuple(side), born=split)
                for child, side in sides.items()
            )
            below = (replace(c, children=(), split_round=None, edge=edge(c)) for c in children)
            tree = tree.update(root, *below)
        now = tuple(move for move in moves if move.server_round <= server_round)
        for move in (move for move in now if move.server_round == server_round):
            tree = moved(tree, move)
        accuracy = 0.9 - 0.4 / server_round
        silent = problems and server_round == 3
        heard = names[1:] if silent else names
        drawn = {n: {"accuracy": accuracy + rng.uniform(-0.1, 0.1)} for n in heard}
        losses = {"loss": 0.5, "train-loss": 0.1}
        measured = {n: ClientMetrics(metrics | losses, 10) for n, metrics in drawn.items()}
        yield RoundReport(
            server_round,
            trained,
            CFLState(tree, moves=now),
            LAYOUT,
            rounds,
            decisions,
            {n: trained.leaf_of(n).name for n in heard},
            measured,
            {names[0]: "did not come within 60 s"} if silent else {},
            0.1,
        )


def moved(tree: ParameterTree, move: Move) -> ParameterTree:
    """The tree after a client has left its leaf for another."""
    origin, target = tree.clusters[move.origin], tree.clusters[move.target]
    members = tuple(name for name in origin.members if name != move.client)
    joined = replace(target, members=(*target.members, move.client))
    return tree.update(replace(origin, members=members), joined)


def edge(cluster: Any) -> dict[str, Any]:
    """An update before the split for each of its members."""
    return {name: np.ones(4, np.float32) for name in cluster.members}


def decided(
    cluster: str, server_round: int, names: list[str], split: int, refused: int, rng: Any
) -> Decision:
    """One verdict, with a matrix where one would have been computed."""
    outcome, alpha = Outcome.MOVING, None
    if server_round > split:
        outcome = Outcome.CONTENT
    elif server_round == split:
        outcome, alpha = Outcome.SPLIT, -0.3
    elif server_round >= split - refused:
        outcome, alpha = Outcome.NOT_APART, 0.2
    similarity = None
    if alpha is not None:
        count, half = len(names), len(names) // 2
        similarity = np.full((count, count), -0.4) + rng.normal(0, 0.05, (count, count))
        similarity[:half, :half] += 0.9
        similarity[half:, half:] += 0.9
        similarity = np.clip((similarity + similarity.T) / 2, -1, 1)
        np.fill_diagonal(similarity, 1)
    return Decision(
        cluster,
        server_round,
        outcome,
        f"for reasons of round {server_round}",
        0.5 if alpha is not None or server_round > split else 2 / server_round + 1,
        1.0 if server_round > split else 3.0,
        alpha,
        clients=tuple(names) if similarity is not None else (),
        similarity=similarity,
        children=(f"{cluster}.0", f"{cluster}.1") if outcome is Outcome.SPLIT else (),
    )


def served(name: str, number: int, tree: ParameterTree, facts: dict[str, Any]) -> ClientResult:
    """A final evaluation in which every seventh client was better off before the split."""
    before = 0.7 + 0.3 * (number % 7 == 3)
    after = 0.9 + 0.001 * (number % 50)
    models = zip(tree.path_of(name), (before, after), strict=False)
    levels = {c.name: ClientMetrics({"accuracy": v, "loss": 1 - v}, HELD_OUT) for c, v in models}
    return ClientResult(tree.leaf_of(name).name, 10.0 + number, levels, facts=facts)


def with_trial(run: Path, outcome: str, chance: float | None = 0.001) -> Path:
    """What clients judged of the made-up run's split of round 6, then or, of a join, in round 10.

    No chance: nobody voted.
    """
    judged = {"decision": outcome, "reason": "the clients judged", "clients": {}, "problems": {}}
    figures = {} if chance is None else {"gain_chance": chance, "loss_chance": 1 - chance}
    judged |= {"figures": figures, "moves": []}
    with edited(run / "rounds.jsonl") as lines:
        now = 10 if outcome == "split taken back" else 6
        after = next(i for i, line in enumerate(lines) if line["round"] > now)
        lines.insert(after, lines[0] | judged | {"round": now})
    return run


def with_personal_step(run: Path) -> Path:
    """The members of cluster 0.0 refused models of their own."""
    step = {"accepted": False, "reason": "no", "kappa": None, "start": None, "length": 1}
    with edited(run / "summary.json") as summary:
        summary["personal"] = {"0.0": {**step, "clients": 0}}
    return run


def with_means(run: Path) -> Path:
    """Mean examples: class a is mirrored in the second cluster, b the same, c without examples."""
    with edited(run / "clients.json") as data:
        for i, client in enumerate(data["clients"].values()):
            sign = 1 if i < 4 else -1
            means = np.array([[[sign, 2 * sign]], [[3, 3]], [[np.nan, np.nan]]], np.float16)
            client |= {"mean_examples": b64encode(means.tobytes()).decode(), "mean_shape": [1, 2]}
        foreign = {"mean_examples": b64encode(bytes(12)).decode(), "mean_shape": [2, 1]}
        data["clients"]["client-7"] |= foreign
    return run


@contextmanager
def edited(path: Path) -> Iterator[Any]:
    """The content of a JSON file, or the lines of one, written back as they were changed."""
    by_line = path.suffix == ".jsonl"
    text = path.read_text()
    content = [json.loads(line) for line in text.splitlines()] if by_line else json.loads(text)
    yield content
    parts = content if by_line else [content]
    path.write_text("".join(json.dumps(part) + "\n" for part in parts))
