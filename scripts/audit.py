"""How `auto` fares outside pictures: generated clients with models of 1 to 50 weights.

    python scripts/audit.py --families all --seeds 0-19 --out outputs/audit

Every round goes through `CFL.run_round`, without Flower, one run a core. A family is one of three
kinds. Planted: its groups are to be found exactly. Nothing to gain: clients of one concept, and no
run is to split. Continuum: clients differ but have no groups; where a split falls is free, but it
must bring a gain. Gain is the mean fall of the clients' loss on fresh examples, own cluster's model
against the model of conventional federated learning of as many rounds. Splits are judged by 12
held-out examples a client, and a run lasts until none is on trial.
"""

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from battery import ALL, chosen, numbers
from command import start, write_table
from federations.generated import FAMILIES, Federation
from rich.console import Console
from rich.table import Table

from cflower.algorithm.auto.criterion import AutoCriterion
from cflower.algorithm.criteria import Criterion, NeverSplit, Outcome
from cflower.algorithm.merging import judged_joins
from cflower.algorithm.projection import Projection
from cflower.algorithm.round import CFL, Reply
from cflower.algorithm.splits_on_trial import judged
from cflower.algorithm.state import CFLState
from cflower.algorithm.tree import Cluster, ParameterTree, Weights
from cflower.algorithm.trial import Comparison, Measure
from cflower.seeding import generator


@dataclass(frozen=True)
class Run:
    """What became of one federation."""

    clusters: int
    """With a client that is judged."""
    exact: bool
    false: bool
    """Two clients of one true group are in different clusters."""
    last_split: int | None
    undone: int
    """Splits that were taken back."""
    gain: float | None
    """None where nothing was split."""
    moved: int
    """Steps of clients that seemed to change; none does."""
    joined: int
    """Pairs of leaves that were joined."""


def audit(
    families: Annotated[str, typer.Option(help="Names with semicolons between, or all.")] = ALL,
    seeds: Annotated[str, typer.Option(help='Such as "0-19" or "0,2,5-7".')] = "0-19",
    out: Annotated[Path, typer.Option(help="Folder of audit.csv.")] = Path("outputs/audit"),
    trial_rounds: Annotated[
        int, typer.Option(min=0, help="Rounds that a split is on trial; 0: splits are final.")
    ] = AutoCriterion.trial_rounds,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core.")] = None,
) -> None:
    """Measure, print the table and write ``audit.csv``."""
    lines = []
    out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        # Names of families have commas.
        for name in chosen("family", families, FAMILIES, ";"):
            runs = list(pool.map(audited, repeat(name), numbers(seeds), repeat(trial_rounds)))
            lines.append(line(name, runs))
            print(*lines[-1].values(), sep=" | ", flush=True)
            write_table(lines, out / "audit.csv")
    table = Table(*lines[0])
    for row in lines:
        table.add_row(*map(str, row.values()))
    Console(width=130).print(table)


def audited(name: str, seed: int, trial_rounds: int) -> Run:
    """One run of a family, and where it split another without splits beside it."""
    federation = FAMILIES[name][1](generator(seed, "audit", name))
    state, undone, joined, rounds = final(federation, AutoCriterion(), seed, trial_rounds)
    last_split = max((c.split_round or 0 for c in state.tree.clusters.values()), default=0) or None
    # Who was not heard from since a split has no place yet.
    placed = [f"client-{i}" not in state.tree.unassigned for i in range(len(federation.groups))]
    judged = np.flatnonzero((federation.groups >= 0) & placed).tolist()
    names = [leaf_of(state, i) for i in judged]
    pairs = list(zip(names, (int(federation.groups[i]) for i in judged), strict=True))
    clusters, groups = len(set(names)), len({group for _, group in pairs})
    gain = None
    if last_split is not None:
        common, *_ = final(replace(federation, rounds=rounds), NeverSplit(), seed, 0)
        gain = float(np.mean([loss(federation, common, i) for i in judged])) - float(
            np.mean([loss(federation, state, i) for i in judged])
        )
    exact = len(set(pairs)) == clusters == groups
    moved = len(state.moves)
    return Run(clusters, exact, len(set(pairs)) > groups, last_split, undone, gain, moved, joined)


def final(
    federation: Federation, criterion: Criterion, seed: int, trial_rounds: int
) -> tuple[CFLState, int, int, int]:
    """The state at the end, the splits that were taken back, the leaves joined and the rounds."""
    projection, moving = Projection(federation.dim, 0), getattr(criterion, "moving", False)
    inner_interval = getattr(criterion, "inner_interval", 0)
    cfl = CFL(
        criterion,
        projection,
        trial_rounds=trial_rounds,
        moving=moving,
        inner_interval=inner_interval,
    )
    m, begin = len(federation.groups), federation.start
    model = Weights(np.zeros(federation.dim) if begin is None else begin, np.zeros(0))
    state = CFLState(ParameterTree.initial(model, [f"client-{i}" for i in range(m)]))
    undone = joined = server_round = 0
    while server_round < federation.rounds or on_trial(state):
        server_round += 1
        rng = generator(seed, "round", server_round)
        replies = list(answers(federation, cfl, state, server_round, rng))
        result = cfl.run_round(state, replies, server_round=server_round)
        before = result.state
        asked = [before.tree.clusters[name].grown for name in before.tree.trials_due(server_round)]
        asked += [join.common for join in result.joins.values()]
        compared = {cluster.name: comparisons(federation, before, cluster) for cluster in asked}
        loss_alone = [Measure("loss", higher_is_better=False)]
        tree, decisions = judged(before.tree, result.decisions, compared, loss_alone, trial_rounds)
        undone += sum(decision.outcome is Outcome.UNDONE for decision in decisions)
        state = replace(before, tree=tree)
        for name, join in result.joins.items():
            apart = state
            state, _ = judged_joins(apart, (), {name: join}, compared, loss_alone, server_round)
            joined += state is not apart
    return state, undone, joined, server_round


def on_trial(state: CFLState) -> bool:
    """Whether any split still is."""
    return any(cluster.on_trial for cluster in state.tree.clusters.values())


def comparisons(federation: Federation, state: CFLState, cluster: Cluster) -> list[Comparison]:
    """What the members of a common model find of it."""
    found = []
    for client in cluster.members:
        if client not in state.tree.unassigned:
            i, leaf = int(client.rpartition("-")[2]), state.tree.leaf_of(client)
            own, examples = federation.clients.held_out(i, leaf.model.trained)
            common, _ = federation.clients.held_out(i, cluster.model.trained)
            found.append(Comparison(leaf.name, {"loss": own}, {"loss": common}, examples))
    return found


def answers(
    federation: Federation, cfl: CFL, state: CFLState, server_round: int, rng: np.random.Generator
) -> Iterator[Reply]:
    """The replies of the clients that take part."""
    m = len(federation.groups)
    here = federation.present(server_round, rng) if federation.present else np.ones(m, bool)
    sizes = np.ones(m) if federation.sizes is None else federation.sizes
    for i in np.flatnonzero(here):
        name = f"client-{i}"
        models = {"": state.tree.training_cluster(name).model}
        probed = cfl.probes(state, name)
        general = None if probed else cfl.also_trains(state.tree, name, server_round)
        if general:
            models[general.name] = general.grown.model
        for cluster, model in models.items():
            inner = cluster and not state.tree.clusters[cluster].on_trial
            # So that the noise of all others is the same with and without inner models.
            noise = generator(0, "inner", server_round, name) if inner else rng
            update = federation.clients.update(i, model.trained, noise)
            length = float(np.linalg.norm(update))
            yield Reply(name, Weights(update, np.zeros(0)), length, float(sizes[i]), cluster)
        if probed:
            update = federation.clients.update(i, probed.model.trained, generator(0, name))
            length = float(np.linalg.norm(update))
            yield Reply(name, Weights(update, np.zeros(0)), length, 1.0, probed.name, True)


def leaf_of(state: CFLState, client: int) -> str:
    """Name of the cluster that a client is in."""
    name = f"client-{client}"
    return next(leaf.name for leaf in state.tree.leaves if name in leaf.members)


def loss(federation: Federation, state: CFLState, client: int) -> float:
    """A client's loss on fresh examples under its cluster's model."""
    model = state.tree.clusters[leaf_of(state, client)].model.trained
    return federation.clients.loss(client, model)


def line(name: str, runs: list[Run]) -> dict[str, Any]:
    """One family's line of the table."""
    kind = FAMILIES[name][0]
    gains = [run.gain for run in runs if run.gain is not None]
    right = [run.last_split for run in runs if run.last_split is not None and not run.false]
    return {
        "family": name,
        "kind": kind,
        "runs": len(runs),
        "split": sum(run.last_split is not None for run in runs),
        "exact": sum(run.exact for run in runs),
        "undone": sum(run.undone for run in runs),
        "false": sum(run.false for run in runs),
        "moves": sum(run.moved for run in runs),
        "joined": sum(run.joined for run in runs),
        "clusters": f"{np.mean([run.clusters for run in runs]):.1f}",
        "median last right split": f"{np.median(right):.0f}" if right else "",
        "mean gain where split": f"{np.mean(gains):.3g}" if gains else "",
        "worst gain": f"{min(gains):.3g}" if gains else "",
    }


if __name__ == "__main__":
    start(lambda: typer.run(audit))
