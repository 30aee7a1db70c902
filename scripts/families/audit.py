"""How `auto` fares outside pictures: generated clients with models of 1 to 50 weights.

    python scripts/run.py audit --families all --seeds 0-19 --out outputs/audit

Every round is `CFL.asks` and `CFL.heard`, without Flower. A family is one of four kinds. Planted:
its groups are to be found exactly. Few examples: so are the five concepts of 100 clients with 14
examples, and 4 that judge; not among "all". Nothing to gain: clients of one concept, and no run is
to split. Continuum: clients differ but have no groups; where a split falls is free, but it must
bring a gain. Gain is the mean fall of the clients' loss on fresh examples, own cluster's model
against that of conventional federated learning of as many rounds. Splits are judged by 12 held-out
examples a client, at the latest in the last round.
"""

from collections import Counter
from itertools import product, starmap
from pathlib import Path
from typing import Annotated, Any

import command
import numpy as np
import pandas as pd
import typer
from command import ALL, chosen, numbers
from records import Job, Record, run_all
from sklearn.metrics import adjusted_rand_score
from tables import show, table_of, write_table

from cflower.algorithm.criteria import Criterion, NeverSplit, Outcome
from cflower.algorithm.projection import Projection
from cflower.algorithm.round import CFL
from cflower.algorithm.state import Ask, CFLState, Reply, Role, Training
from cflower.algorithm.tree import ParameterTree, Status
from cflower.algorithm.weights import Weights, norm
from cflower.auto.criterion import AutoCriterion
from cflower.changes import changes_of
from cflower.metric import Metric
from cflower.seeding import generator
from families.generated import EVERY, FAMILIES, Federation
from families.planted import Oracle

METHODS = ("auto", "oracle", "common", "alone")


def audit(
    families: Annotated[str, typer.Option(help="Names with semicolons between, or all.")] = ALL,
    seeds: command.Seeds = "0-19",
    out: command.Out = Path("outputs/audit"),
    methods: Annotated[str, typer.Option(help=f"Of: {', '.join(METHODS)}.")] = "auto",
    data: Annotated[str, typer.Option(help="The folder `languages`, for these.")] = "",
    workers: command.Workers = None,
    table: command.TableOnly = False,
) -> None:
    """Measure, print the table and write ``audit.csv``."""
    names = chosen("family", families, FAMILIES if families == ALL else EVERY, ";")  # with commas
    options = product(names, numbers(seeds), chosen("method", methods, METHODS), [data])
    run_all(starmap(job_of, options), audited, sentence, report, out, workers, table)


def report(records: list[Record], out: Path) -> None:
    """The table, and as ``audit.csv``."""
    runs = table_of(records, family=EVERY, method=METHODS)
    lines = [line(*key, some) for key, some in runs.groupby(["family", "method"], sort=False)]
    write_table(lines, out / "audit.csv")
    show(lines)


def job_of(family: str, seed: int, method: str = "auto", data: str = "") -> Job:
    """One federation to be measured."""
    what = {"family": family, "method": method, "seed": seed}
    return Job(what, {**what, "data": data})


def audited(job: Job) -> Record:
    """One run of a family; if it split, compared with another one without splits."""
    family, method, seed, data = job.settings.values()
    keys = {"folder": Path(data)} if "languages" in family else {}
    federation = EVERY[family][1](generator(seed, "audit", family), **keys)
    groups = range(len(federation.groups)) if method == "alone" else federation.groups.tolist()
    oracle = Oracle({f"client-{i}": group for i, group in enumerate(groups)})
    criterion = {"auto": AutoCriterion(), "common": NeverSplit()}.get(method, oracle)
    state, taken_back = final(federation, criterion, seed)
    rounds_of_splits = (cluster.split_round for cluster in state.tree.clusters.values())
    last_split = max(filter(None, rounds_of_splits), default=None)
    # A client that has not replied since a split has no place yet.
    placed = [f"client-{i}" not in state.tree.unassigned for i in range(len(federation.groups))]
    judged = np.flatnonzero((federation.groups >= 0) & placed).tolist()
    names = [leaf_of(state, i) for i in judged]
    pairs = list(zip(names, (int(federation.groups[i]) for i in judged), strict=True))
    clusters, groups = len(set(names)), len({group for _, group in pairs})
    gain, own = None, mean_loss(federation, state, judged)
    if last_split is not None:
        common, _ = final(federation, NeverSplit(), seed)
        gain = mean_loss(federation, common, judged) - own
    return {
        "clusters": clusters,  # those with a client that is judged
        "exact": len(set(pairs)) == clusters == groups,
        "false": len(set(pairs)) > groups,  # one true group is in different clusters
        "adjusted_rand_index": float(adjusted_rand_score([group for _, group in pairs], names)),
        "loss": own,
        "last_split": last_split,
        "undone": taken_back.total() - taken_back[Status.JOINED],
        "gain": gain,  # null where nothing was split
        "moved": len(state.moves),  # steps of clients that seemed to change; none does
        "joined": taken_back[Status.JOINED],  # confirmed splits, taken back later
    }


def sentence(record: Record) -> str:
    """One run in a few words."""
    gain = "" if record["gain"] is None else f", gain {record['gain']:.3g}"
    wrong = ", FALSE" if record["false"] else ""
    exact = "exact" if record["exact"] else "not exact"
    return f"{exact}{wrong}, {record['clusters']} clusters{gain}"


def final(
    federation: Federation, criterion: Criterion, seed: int
) -> tuple[CFLState, Counter[Status]]:
    """The state at the end, and how many splits the clients took back, by what they were then."""
    cfl = CFL(
        criterion,
        Projection(federation.dim),
        changes=changes_of(
            getattr(criterion, "trial_rounds", 0), moving=getattr(criterion, "moving", False)
        ),
        metric=Metric("loss", higher_is_better=False),
    )
    m, begin = len(federation.groups), federation.start
    model = Weights(np.zeros(federation.dim) if begin is None else begin, np.zeros(0))
    state = CFLState(ParameterTree.initial(model, [f"client-{i}" for i in range(m)]))
    taken_back = Counter[Status]()
    for server_round in range(1, federation.rounds + 1):
        rng = generator(seed, "round", server_round)
        replies = trained(federation, cfl, state, server_round, rng)
        last = server_round == federation.rounds
        state, _, asks = cfl.heard(state, replies, server_round, last=last)
        if asks:
            replies = [evaluated(federation, state, ask) for ask in asks]
            state, decisions, _ = cfl.heard(state, replies, server_round)
            for decision in decisions:
                if decision.outcome is Outcome.UNDONE:
                    taken_back[state.tree.clusters[decision.cluster].undone[-1].status] += 1
    return state, taken_back


def trained(
    federation: Federation, cfl: CFL, state: CFLState, server_round: int, rng: np.random.Generator
) -> list[Training]:
    """The updates of the clients that take part."""
    m = len(federation.groups)
    here = federation.present(server_round, rng) if federation.present else np.ones(m, bool)
    sizes = np.ones(m) if federation.sizes is None else federation.sizes
    asks = cfl.asks(state, server_round, [f"client-{i}" for i in np.flatnonzero(here)])
    replies = []
    for ask in sorted(asks, key=number_of):
        i, noise = number_of(ask), rng
        # The noise of all other updates is the same with these and without.
        if ask.role is Role.PLACE and ask.client not in state.tree.unassigned:
            noise = generator(0, ask.client)
        update = federation.clients.update(i, state.model_of(ask).trained, noise)
        weights, length = Weights(update, np.zeros(0)), norm(update)
        replies.append(Training(ask, float(sizes[i]), update=weights, norm=length, kept=update))
    return replies


def evaluated(federation: Federation, state: CFLState, ask: Ask) -> Reply:
    """The loss of a model on a client's held-out examples."""
    model = state.model_of(ask).trained
    value = federation.clients.loss(number_of(ask), model, slice(federation.held_out))
    return Reply(ask, federation.held_out, {"loss": value})


def number_of(ask: Ask) -> int:
    """The client's place in the federation."""
    return int(ask.client.removeprefix("client-"))


def leaf_of(state: CFLState, client: int) -> str:
    """Name of the leaf of a client."""
    return state.tree.leaf_of(f"client-{client}").name


def mean_loss(federation: Federation, state: CFLState, clients: list[int]) -> float:
    """The clients' mean loss on fresh examples, each under its cluster's model."""
    fresh, models = slice(federation.held_out, None), state.tree.clusters
    model_of = {i: models[leaf_of(state, i)].model.trained for i in clients}
    return float(np.mean([federation.clients.loss(i, model_of[i], fresh) for i in clients]))


def line(name: str, method: str, runs: pd.DataFrame) -> dict[str, Any]:
    """One family's line of the table."""
    right = runs[~runs["false"]]["last_split"]
    return {
        "family": name,
        "kind": EVERY[name][0],
        "method": method,
        "runs": len(runs),
        "split": runs["last_split"].count(),
        **runs[["exact", "undone", "false", "moved", "joined"]].sum(),
        **runs[["clusters", "adjusted_rand_index", "loss"]].mean(),
        "median last right split": right.median(),
        "mean gain where split": runs["gain"].mean(),
        "worst gain": runs["gain"].min(),
    }
