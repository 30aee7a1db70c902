"""Groups that nobody made: pages of software help in 14 languages of 4 families.

The data are those of the folder ``languages`` (a row is a page; columns text, language, family).
Every client has ten pages of one language and learns which character comes next; nothing but the
judging of a run sees the language, and nothing at all the family.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from families.planted import Oracle
from torch import Tensor, nn
from torch.nn.functional import pad

from cflower import assign
from cflower.runs.record import RunRecord
from reproduction.experiment import Experiment, Results, Setting, simulate, summary_of

PAGES = 10
"""A client's."""
LONGEST = 1000
"""Characters of a page that are used: some pages are fifty times as long as others."""
NEWCOMERS = 3
"""Of each language, from pages that no client has."""
FAMILIES = ("germanic", "romance", "slavic", "uralic")

KEYS: Mapping[str, Any] = {
    "tokens": "characters",
    "model": "reproduction.languages:five_characters",
    "partitioner": "natural-id",
    "natural-id-column": "client",
    "group-column": "language",
    "shift": "none",
    "metric": "perplexity",
    "local-epochs": 1,
    "batch-size": 8,
    "learning-rate": 0.2,
}


class FiveCharacters(nn.Module):
    """The next character from the five before it: an embedding and one convolution."""

    SEEN = 5

    def __init__(self, vocabulary: int, width: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.convolution = nn.Conv1d(width, hidden, self.SEEN)
        self.classifier = nn.Conv1d(hidden, vocabulary, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, length) to logits (batch, vocabulary, length)."""
        embedded = self.embedding(tokens.long()).transpose(1, 2)
        before = pad(embedded, (self.SEEN - 1, 0))
        logits: Tensor = self.classifier(torch.relu(self.convolution(before)))
        return logits


def five_characters(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The run's model: it takes a tenth of the time that the LSTM takes to learn as much."""
    return FiveCharacters(num_classes)


def run(
    setting: Setting, name: str, per_language: int, more: Mapping[str, Any], against: bool = False
) -> Results:
    """CFL with ``auto``, and its newcomers or, if so asked, the other ways to train."""
    keys, family_of = federation(setting, name, per_language, more)
    found = simulate(setting, name, keys)
    groups = summary_of(found)["groups"]
    others = {}
    if against:
        families = {client: list(FAMILIES).index(family_of[g]) for client, g in groups.items()}
        never = {**keys, "method": "federated"}
        others = {
            "federated": simulate(setting, f"{name}-fl", never),
            "isolated": simulate(setting, f"{name}-alone", {**keys, "method": "isolated"}),
            "family": simulate(setting, f"{name}-family", never, Oracle(families)),
        }
    return {
        **outcome(found, family_of),
        "perplexity": {
            kind: by_language(other, groups) for kind, other in {"own": found, **others}.items()
        },
        "clients_better": {kind: compared(found, other) for kind, other in others.items()},
        "newcomers": [] if against else newcomers(setting, found, family_of),
    }


def outcome(run: RunRecord, family_of: Mapping[str, str]) -> Results:
    """What every experiment here keeps of a run."""
    groups = summary_of(run)["groups"]
    return {
        "families": family_of,
        "clients": len(groups),
        "rounds": summary_of(run)["rounds"],
        "split_rounds": {split["cluster"]: split["round"] for split in summary_of(run)["splits"]},
        "clusters": {
            cluster: counts(groups[client] for client in members)
            for cluster, members in summary_of(run)["clusters"].items()
        },
        "adjusted_rand_index": summary_of(run)["adjusted_rand_index"],
    }


# ------------------------------------------------------------------------------ the data


def read_pages(setting: Setting, split: str) -> pd.DataFrame:
    """Columns text, language, family; a row is a page, cut at `LONGEST` characters."""
    if setting.quick:
        return babble()
    from datasets import Dataset

    table = Dataset.from_parquet(f"{setting.source('languages')}/{split}.parquet")
    pages = pd.DataFrame({"text": [text[:LONGEST] for text in table["text"]]})
    for column in ("language", "family"):
        names = table.features[column].names
        pages[column] = [names[place] for place in table[column]]
    return pages


def babble() -> pd.DataFrame:
    """Four languages of two families, each with letters of its own, for ``--quick``."""
    rng = np.random.default_rng(0)
    letters = {"da": "abcde", "de": "abcdf", "es": "uvwxy", "it": "uvwxz"}
    rows = [
        {
            "text": "".join(rng.choice(list(own), 140)),
            "language": language,
            "family": FAMILIES[i // 2],
        }
        for i, (language, own) in enumerate(letters.items())
        for _ in range(2 * PAGES)
    ]
    return pd.DataFrame(rows)


def federation(
    setting: Setting,
    name: str,
    per_language: int,
    more: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, str]]:
    """The run config of a federation, its data written, and the family of every language."""
    pages = read_pages(setting, "train")
    dealt = with_clients(pages, per_language)
    folder = setting.out / f"{name}-pages"
    write(dealt, folder)
    keys = {**KEYS, **more, "dataset": f"text:{folder}"}
    keys["min-available-nodes"] = dealt["client"].nunique()
    if setting.quick:
        keys["num-server-rounds"] = 2
    return keys, dict(zip(pages["language"], pages["family"], strict=True))


def with_clients(pages: pd.DataFrame, per_language: int) -> pd.DataFrame:
    """The first pages of every language, with a column ``client``: `PAGES` to each."""
    place = pages.groupby("language").cumcount()
    dealt = pages.assign(client=pages["language"] + (place // PAGES).map("-{:03}".format))
    return dealt[place < per_language * PAGES]


def write(pages: pd.DataFrame, folder: Path) -> None:
    """Pages as a folder that ``text:FOLDER`` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    pages.to_parquet(folder / "train.parquet", index=False)


# ------------------------------------------------------------------------------ the figures


def by_language(run: RunRecord, groups: Mapping[str, str]) -> dict[str, float]:
    """Perplexity of every language, and of all together: exp of the mean loss per character."""
    clients = summary_of(run)["clients"]
    perplexity = {}
    for language in [*sorted(set(groups.values())), "all"]:
        theirs = [clients[c] for c, group in groups.items() if language in (group, "all")]
        weights = [client["held_out"] for client in theirs]
        loss = np.average([client["loss"] for client in theirs], weights=weights)
        perplexity[language] = round(math.exp(loss), 3)
    return perplexity


def compared(run: RunRecord, other: RunRecord) -> list[int]:
    """For how many clients this run's own model is better than the other's, and of how many."""
    clients, others = summary_of(run)["clients"], summary_of(other)["clients"]
    better = sum(clients[name]["loss"] < others[name]["loss"] for name in clients)
    return [better, len(clients)]


def counts(languages: Iterable[str]) -> dict[str, int]:
    """How many members of each language."""
    return dict(sorted(Counter(languages).items()))


def newcomers(setting: Setting, run: RunRecord, family_of: Mapping[str, str]) -> list[Results]:
    """Where Algorithm 4 takes clients with pages that no client had."""
    if not summary_of(run)["splits"]:
        return []
    groups, placed = summary_of(run)["groups"], []
    pages = with_clients(read_pages(setting, "test"), NEWCOMERS)
    for (client, language), theirs in pages.groupby(["client", "language"]):
        folder = setting.out / "newcomers" / str(client)
        write(theirs, folder)
        found = assign(run.path, folder, own_code=True)
        there = counts(groups[member] for member in summary_of(run)["clusters"][found.cluster])
        placed.append(
            {
                "client": client,
                "language": language,
                "cluster": found.cluster,
                "of": there,
                "right": set(there) == {language},
                "family": {family_of[name] for name in there} == {family_of[str(language)]},
                "stranger": found.stranger_at is not None,
                "perplexity": round(math.exp(found.levels[-1].metrics["loss"]), 3),
                "common": round(math.exp(found.levels[0].metrics["loss"]), 3),
            }
        )
    return placed


ROUNDS = {"num-server-rounds": 24}
FEW_ROUNDS = {"num-server-rounds": 14}
MANY: Mapping[str, Any] = {"num-server-rounds": 60, "fraction-train": 0.1}
SOURCE = "natural groups"

EXPERIMENTS = (
    Experiment(
        "languages",
        SOURCE,
        "14 languages x 10 clients: which character comes next",
        partial(run, name="languages", per_language=10, more=ROUNDS),
    ),
    Experiment(
        "languages-many",
        SOURCE,
        "14 languages x 70 clients, a tenth of them a round",
        partial(run, name="languages-many", per_language=70, more=MANY),
    ),
    Experiment(
        "languages-compared",
        SOURCE,
        "14 languages x 2 clients: CFL, FL, a model a family, every client alone",
        partial(run, name="languages-compared", per_language=2, more=FEW_ROUNDS, against=True),
    ),
)
