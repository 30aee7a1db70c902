"""An adversary that searches: programs of attack are drawn, changed and mixed; the worst are kept.

What a program costs are the points of accuracy that the honest clients lose against the same run in
which the hostile ones behave: with the models of their clusters (``points``), by which the search
goes, and with those that serve them, after the personal step (``served``).

One turn in three measures one of the worst with a further seed, since a single run of a sampled
federation differs by points from one that is as good. All that was tried is in ``search.json``,
and a later search goes on from there.
"""

import json
import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
from command import out_folder, quieten_flower, write_record
from sklearn.datasets import load_diabetes
from tables import show

from adversaries.attacks import Attack
from adversaries.federation import Federation
from adversaries.programs import CLIENTS, REGRESSION, Program, changed, drawn, mixed
from cflower import server_app, simulate
from cflower.config import RunConfig
from cflower.errors import FederationError
from cflower.seeding import generator

WORST = 10
CONFIRMED = 3
"""Seeds from which on a cost is believed."""
LEAF, SERVED = 0, 1
Figures = tuple[float, float]
"""Of the clusters' models, and of those that serve the clients."""
Tried = dict[Program, list[Figures]]


def accuracies(program: Program, seed: int, attack: Attack) -> Figures:
    """Mean accuracies of the honest clients; 0 if the run does not reach its end."""
    with tempfile.TemporaryDirectory() as folder:
        keys = {**program.federation, "seed": seed, "output-dir": folder}
        if program.model == REGRESSION:
            keys["dataset"] = patients(Path(folder) / "patients")
        config = RunConfig.read(keys)
        server = partial(server_app.run, say=lambda text: None)
        behave = Federation(attack, program.clients)
        try:
            found = simulate(
                behave,
                CLIENTS,
                server_app=server,
                run_config=config.as_keys(),
                grid_type=behave.grid,
            )
        except FederationError:
            return 0.0, 0.0
    names = [f"partition-{i}" for i in range(CLIENTS) if i not in program.clients]
    clients = [found["clients"][name] for name in names]
    served = [score(client) for client in clients]
    leaf = [score(c, "leaf_", own) for c, own in zip(clients, served, strict=True)]
    return mean(leaf), mean(served)


def score(client: Mapping[str, Any], which: str = "", missing: float = 0.0) -> float:
    """A client's accuracy, or one less its error in standard deviations; none if not finite."""
    if "rmse" in client:
        return 1 - float(client.get(f"{which}rmse", 1 - missing))
    return float(client.get(f"{which}accuracy", missing))


@cache
def diabetes() -> pd.DataFrame:
    """Scikit-learn's diabetes data, all columns scaled to a deviation of 1."""
    rows = load_diabetes(as_frame=True).frame
    return (rows - rows.mean()) / rows.std()


def patients(place: Path) -> str:
    """The folder with these rows."""
    diabetes().to_csv(out_folder(place) / "train.csv", index=False)
    return str(place)


HONEST = Program._fields[: Program._fields.index("when")]


@cache
def unharmed(federation: Program, seed: int) -> Figures:
    """The accuracies without an attack."""
    return accuracies(federation, seed, Attack())


def behaving(program: Program) -> Program:
    """The federation of a program alone."""
    return Program(*(getattr(program, f) if f in HONEST else None for f in Program._fields))


def cost(program: Program, seed: int) -> Figures:
    """Points of accuracy that a program costs the honest clients."""
    before, after = unharmed(behaving(program), seed), accuracies(program, seed, program.attack)
    return 100 * (before[LEAF] - after[LEAF]), 100 * (before[SERVED] - after[SERVED])


def search(budget: float, seeds: Sequence[int], out: Path, fixed: Mapping[str, Any]) -> None:
    """Search for so many minutes, and print the ten worst. The first seed decides what is drawn.

    Only programs with the fixed parts are tried and shown.
    """
    quieten_flower(logging.ERROR)
    path, end = out_folder(out) / "search.json", time.time() + 60 * budget
    tried = read(path)
    while not tried or time.time() < end:
        rng = generator(seeds[0], "search", sum(map(len, tried.values())))
        program = following(having(tried, fixed), len(seeds), rng, fixed)
        known = tried.setdefault(program, [])
        known.append(cost(program, seeds[len(known)]))
        write_record({"programs": rows(tried)}, path)
    tried = having(tried, fixed)
    count = sum(map(len, tried.values()))
    show(table(tried), f"{len(tried)} programs, {count} runs; the worst")


def having(tried: Tried, fixed: Mapping[str, Any]) -> Tried:
    """Those with the fixed parts."""
    return {p: runs for p, runs in tried.items() if p == p._replace(**fixed)}


def points(known: Sequence[Figures]) -> float:
    """The mean cost with the models of the clusters."""
    return mean(figures[LEAF] for figures in known)


def worst(tried: Tried, least: int = 1) -> list[Program]:
    """The programs with so many runs, the worst first."""
    known = {program: points(runs) for program, runs in tried.items() if len(runs) >= least}
    return sorted(known, key=lambda program: -known[program])


def following(
    tried: Tried, most: int, rng: np.random.Generator, fixed: Mapping[str, Any]
) -> Program:
    """The program to run next: one of the worst again, changed or mixed, or a new one."""
    best, turn = worst(tried)[:WORST], rng.integers(6)
    again = [program for program in best if len(tried[program]) < most]
    if turn < 2 and again:
        return again[0]
    for _ in range(100):
        if len(best) < WORST or turn == 2:
            program = drawn(rng)
        elif turn == 3:
            program = mixed(best[rng.integers(WORST)], best[rng.integers(WORST)], rng)
        else:
            program = changed(best[rng.integers(WORST)], rng)
        program = program._replace(**fixed)
        if program not in tried:
            break
    return program


def rows(tried: Tried) -> list[dict[str, Any]]:
    """Every program with its costs by seed, the worst first."""
    return [{**p._asdict(), "costs": tried[p]} for p in worst(tried)]


def read(path: Path) -> Tried:
    """What an earlier search has tried."""
    if not path.exists():
        return {}
    known = json.loads(path.read_text())["programs"]
    return {
        Program(*(row[f] for f in Program._fields)): [tuple(c) for c in row["costs"]]
        for row in known
    }


def table(tried: Tried) -> list[dict[str, Any]]:
    """The ten worst of those that were measured with several seeds, if there are any."""
    least = CONFIRMED if any(len(runs) >= CONFIRMED for runs in tried.values()) else 1
    return [
        {
            "points": round(points(tried[p]), 1),
            "served": round(mean(figures[SERVED] for figures in tried[p]), 1),
            "runs": len(tried[p]),
            "program": ", ".join(f"{f} {v}" for f, v in p._asdict().items() if v != ""),
        }
        for p in worst(tried, least)[:WORST]
    ]
