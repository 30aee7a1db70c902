"""How `auto` fares outside pictures: generated clients with models of 1 to 50 weights.

    python scripts/audit.py --families all --seeds 0-19 --out outputs/audit

Every round is `CFL.asks` and `CFL.heard`, without Flower, one run per core. A family is one of
three kinds. Planted: its groups are to be found exactly. Nothing to gain: clients of one concept,
and no run is to split. Continuum: clients differ but have no groups; where a split falls is free,
but it must bring a gain. Gain is the mean fall of the clients' loss on fresh examples, own
cluster's model against the model of conventional federated learning of as many rounds. Splits are
judged by 12 held-out examples a client, and a run lasts until none is on trial.
"""

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

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
from cflower.algorithm.criteria import Criterion, NeverSplit
from cflower.algorithm.paired_comparison import Measure
from cflower.algorithm.projection import Projection
from cflower.algorithm.round import CFL, open_trials
from cflower.algorithm.state import Ask, CFLState, Reply, Role
from cflower.algorithm.tree import ParameterTree, Proposal
from cflower.algorithm.weights import Weights, norm
from cflower.seeding import generator


@dataclass(frozen=True)
class Run:
    """The result of one federation."""

    clusters: int
    """Number of those with a client that is judged."""
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
    """One run of a family; if it split, compared with another one without splits."""
    federation = FAMILIES[name][1](generator(seed, "audit", name))
    state, reunited, rounds = final(federation, AutoCriterion(), seed, trial_rounds)
    last_split = max((c.split_round or 0 for c in state.tree.clusters.values()), default=0) or None
    # A client that has not replied since a split has no place yet.
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
    joined = sum(bool(proposal.leaves) for proposal in reunited)
    return Run(
        clusters,
        exact,
        len(set(pairs)) > groups,
        last_split,
        undone=len(reunited) - joined,
        gain=gain,
        moved=len(state.moves),
        joined=joined,
    )


def final(
    federation: Federation, criterion: Criterion, seed: int, trial_rounds: int
) -> tuple[CFLState, list[Proposal], int]:
    """The state at the end, the splits taken back and pairs joined, and the number of rounds."""
    cfl = CFL(
        criterion,
        Projection(federation.dim),
        trial_rounds=trial_rounds,
        moving=getattr(criterion, "moving", False),
        inner_interval=getattr(criterion, "inner_interval", 0),
        metric=Measure("loss", higher_is_better=False),
    )
    m, begin = len(federation.groups), federation.start
    model = Weights(np.zeros(federation.dim) if begin is None else begin, np.zeros(0))
    state = CFLState(ParameterTree.initial(model, [f"client-{i}" for i in range(m)]))
    reunited: list[Proposal] = []
    server_round = 0
    while server_round < federation.rounds or open_trials(state.tree):
        server_round += 1
        rng = generator(seed, "round", server_round)
        replies = trained(federation, cfl, state, server_round, rng)
        state, _, asks = cfl.heard(state, replies, server_round)
        if state.judging is not None:
            proposals = state.judging.proposals
            replies = [evaluated(federation, state, ask) for ask in asks]
            state = cfl.heard(state, replies, server_round).state
            reunited += [proposal for proposal in proposals if in_one_leaf(state.tree, proposal)]
    return state, reunited, server_round


def in_one_leaf(tree: ParameterTree, proposal: Proposal) -> bool:
    """Whether the parts of a proposal share a leaf."""
    return len({tree.leaf_of(part[0]).name for part in proposal.parts}) == 1


def trained(
    federation: Federation, cfl: CFL, state: CFLState, server_round: int, rng: np.random.Generator
) -> list[Reply]:
    """The updates of the clients that take part."""
    m = len(federation.groups)
    here = federation.present(server_round, rng) if federation.present else np.ones(m, bool)
    sizes = np.ones(m) if federation.sizes is None else federation.sizes
    asks = cfl.asks(state, server_round, [f"client-{i}" for i in np.flatnonzero(here)])
    replies = []
    for ask in sorted(asks, key=number_of):
        i, noise = number_of(ask), rng
        # The noise of all other updates is the same with these and without.
        if ask.role is Role.GENERAL and not state.tree.clusters[ask.cluster].on_trial:
            noise = generator(0, "inner", server_round, ask.client)
        elif ask.role is Role.PLACE and ask.client not in state.tree.unassigned:
            noise = generator(0, ask.client)
        update = federation.clients.update(i, state.model_of(ask).trained, noise)
        weights, length = Weights(update, np.zeros(0)), norm(update)
        replies.append(Reply(ask, float(sizes[i]), {}, weights, length, update))
    return replies


def evaluated(federation: Federation, state: CFLState, ask: Ask) -> Reply:
    """The loss of a model on a client's held-out examples."""
    value, examples = federation.clients.held_out(number_of(ask), state.model_of(ask).trained)
    return Reply(ask, examples, {"loss": value})


def number_of(ask: Ask) -> int:
    """The client's place in the federation."""
    return int(ask.client.removeprefix("client-"))


def leaf_of(state: CFLState, client: int) -> str:
    """Name of the leaf of a client."""
    return state.tree.leaf_of(f"client-{client}").name


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
