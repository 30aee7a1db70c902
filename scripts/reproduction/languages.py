"""Groups that nobody made: pages of software help in 14 languages of 4 families.

The data are those of the folder ``languages`` (a row is a page; columns text, language, family).
Every client has ten pages of one language and learns which character comes next; nothing but the
judging of a run sees the language, and nothing at all the family.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from federations.planted import Oracle
from numpy.typing import NDArray
from scipy.cluster.hierarchy import dendrogram, fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import adjusted_rand_score
from torch import Tensor, nn
from torch.nn.functional import pad

from cflower import assign
from cflower.algorithm.tree import ROOT
from cflower.runs.plots import COLORS, INNER, new_figure, save
from cflower.runs.record import RunRecord
from reproduction.experiment import Experiment, Results, Setting, simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGES = 10
"""A client's."""
LONGEST = 1000
"""Characters of a page that are used: some pages are fifty times as long as others."""
NEWCOMERS = 3
"""Of each language, from pages that no client has."""
FAMILIES = ("germanic", "romance", "slavic", "uralic")
ABSENT = ("da", "it", "sl", "et")
"""One of each family, left out of a run of its own."""

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
    groups = found.summary["groups"]
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
        **kinship(found, family_of),
        "newcomers": [] if against else newcomers(setting, found, family_of),
    }


def run_absent(setting: Setting, name: str, per_language: int, more: Mapping[str, Any]) -> Results:
    """Where languages go that were never there."""
    keys, family_of = federation(setting, name, per_language, more, ABSENT)
    found = simulate(setting, name, keys)
    return {
        **outcome(found, family_of),
        "newcomers": newcomers(setting, found, family_of),
    }


def run_tree(setting: Setting, name: str, per_language: int, more: Mapping[str, Any]) -> Results:
    """The paper's own splits, in two: ``auto`` makes all languages' clusters at once."""
    keys, family_of = federation(setting, name, per_language, more)
    found = simulate(setting, name, keys)
    groups, clients = found.summary["groups"], found.summary["clients"]
    nodes = {
        cluster: {
            "languages": counts(groups[member] for member in node["members"]),
            "children": node["children"],
            "split_round": node["split_round"],
        }
        for cluster, node in found.clusters.items()
    }
    # Four parts, as many as there are families, if both sides of the first split were split again.
    parts = [clients[client]["cluster"].split(".")[:3] for client in groups]
    families = [family_of[language] for language in groups.values()]
    index = adjusted_rand_score(families, ["-".join(part) for part in parts])
    return {
        **outcome(found, family_of),
        "nodes": nodes,
        "family_rand_index": round(float(index), 3),
    }


def outcome(run: RunRecord, family_of: Mapping[str, str]) -> Results:
    """What every experiment here keeps of a run."""
    groups = run.summary["groups"]
    return {
        "families": family_of,
        "clients": len(groups),
        "rounds": run.summary["rounds"],
        "split_rounds": {split["cluster"]: split["round"] for split in run.summary["splits"]},
        "clusters": {
            cluster: counts(groups[client] for client in members)
            for cluster, members in run.summary["clusters"].items()
        },
        "adjusted_rand_index": run.summary["adjusted_rand_index"],
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
    absent: Sequence[str] = (),
) -> tuple[dict[str, Any], dict[str, str]]:
    """The run config of a federation, its data written, and the family of every language."""
    pages = read_pages(setting, "train")
    there = pages[~pages["language"].isin(absent)]
    dealt = with_clients(there, per_language)
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
    clients = run.summary["clients"]
    perplexity = {}
    for language in [*sorted(set(groups.values())), "all"]:
        theirs = [clients[c] for c, group in groups.items() if language in (group, "all")]
        weights = [client["held_out"] for client in theirs]
        loss = np.average([client["loss"] for client in theirs], weights=weights)
        perplexity[language] = round(math.exp(loss), 3)
    return perplexity


def compared(run: RunRecord, other: RunRecord) -> list[int]:
    """For how many clients this run's own model is better than the other's, and of how many."""
    clients, others = run.summary["clients"], other.summary["clients"]
    better = sum(clients[name]["loss"] < others[name]["loss"] for name in clients)
    return [better, len(clients)]


def counts(languages: Iterable[str]) -> dict[str, int]:
    """How many members of each language."""
    found, numbers = np.unique(list(languages), return_counts=True)
    return dict(zip(found.tolist(), numbers.tolist(), strict=True))


def kinship(run: RunRecord, family_of: Mapping[str, str]) -> Results:
    """How similar the languages' updates of the common model were when it was split.

    The mean cosine of the updates of each two languages' clients, and what average linkage makes
    of it: as many parts as there are families, against the families.
    """
    groups, line = run.summary["groups"], run.by_cluster[ROOT][-1]
    matrix = run.matrix(line)
    if matrix is None:
        return {}
    truth = np.array([groups[name] for name in matrix.clients])
    languages = sorted(set(truth.tolist()))
    of = [truth == language for language in languages]
    similarity = np.array([[matrix.values[np.ix_(a, b)].mean() for b in of] for a in of])
    families = [family_of[language] for language in languages]
    parts = fcluster(joined(similarity), len(set(families)), "maxclust")
    return {
        "languages": languages,
        "similarity": similarity.round(3).tolist(),
        "parts": dict(zip(languages, parts.tolist(), strict=True)),
        "family_rand_index": round(float(adjusted_rand_score(families, parts)), 3),
    }


def joined(similarity: NDArray[np.floating]) -> NDArray[np.floating]:
    """Average linkage of 1 - similarity, as SciPy has it."""
    distance = 1 - (similarity + similarity.T) / 2
    np.fill_diagonal(distance, 0)
    linked: NDArray[np.floating] = linkage(squareform(distance), "average")
    return linked


def newcomers(setting: Setting, run: RunRecord, family_of: Mapping[str, str]) -> list[Results]:
    """Where Algorithm 4 takes clients with pages that no client had."""
    if not run.summary["splits"]:
        return []
    groups, placed = run.summary["groups"], []
    pages = with_clients(read_pages(setting, "test"), NEWCOMERS)
    for (client, language), theirs in pages.groupby(["client", "language"]):
        folder = setting.out / "newcomers" / str(client)
        write(theirs, folder)
        found = assign(run.path, folder)
        there = counts(groups[member] for member in run.summary["clusters"][found.cluster])
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


# ------------------------------------------------------------------------------ the picture


def draw(results: Results, path: Path) -> None:
    """The families as they are known, and as the updates tell; perplexity of every language."""
    both = len(results["perplexity"]) > 1
    with new_figure(9 if both else 5.5, 4.6) as figure:
        left, *right = figure.subplots(1, 2 if both else 1, squeeze=False).ravel()
        if "similarity" in results:
            draw_kinship(left, results)
        for axes in right:
            draw_perplexity(axes, results)
        save(figure, path)


def draw_kinship(axes: "Axes", results: Results) -> None:
    """A dendrogram; each language's name in the colour of its family."""
    linked = joined(np.array(results["similarity"]))
    dendrogram(
        linked,
        ax=axes,
        orientation="left",
        labels=results["languages"],
        link_color_func=lambda _: INNER,
    )
    for label in axes.get_yticklabels():
        family = results["families"][label.get_text()]
        label.set(color=COLORS[FAMILIES.index(family)], fontweight="bold", fontsize=9)
    for color, family in zip(COLORS, FAMILIES, strict=False):
        axes.plot([], [], color=color, linewidth=4, label=family)
    axes.grid(visible=False)
    axes.set(xlabel="1 - mean cosine of two languages' updates")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize=8)


KINDS = {
    "federated": "conventional FL",
    "family": "given the family: its model",
    "isolated": "each client alone",
    "own": "cflower: own model",
}


def draw_perplexity(axes: "Axes", results: Results) -> None:
    """A row a language, a mark a model."""
    languages = [*sorted(results["families"], key=lambda n: (results["families"][n], n)), "all"]
    shown = [name for name in languages if name in results["perplexity"]["own"]]
    for (kind, label), color, mark in zip(KINDS.items(), COLORS, "sd^o", strict=False):
        perplexity = results["perplexity"][kind]
        axes.plot(
            [perplexity[n] for n in shown], shown, mark, color=color, label=label, markersize=5
        )
    axes.invert_yaxis()
    axes.set(xlabel="perplexity per character, held-out windows", xscale="log")
    ticks = axes.get_xlim()
    places = [n for n in (4, 5, 6, 8, 10, 12, 15, 20, 25, 30) if ticks[0] <= n <= ticks[1]]
    axes.set_xticks(places, [str(n) for n in places])
    axes.set_xticks([], minor=True)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize=8)


def draw_tree(results: Results, path: Path) -> None:
    """The tree of clusters: a fork stands at the round of its split."""
    nodes = results["nodes"]
    order = leaves_below(nodes, ROOT)
    last = max((node["split_round"] or 0 for node in nodes.values()), default=0) + 1
    with new_figure(7, 4.2) as figure:
        axes = figure.subplots()

        def place(name: str) -> float:
            """Height of a node, after drawing what is below it."""
            node = nodes[name]
            if not node["children"]:
                height = float(order.index(name))
                for i, (language, count) in enumerate(node["languages"].items()):
                    color = COLORS[FAMILIES.index(results["families"][language])]
                    text = f"{language} ({count})"
                    axes.text(last + 0.1 + 1.1 * i, height, text, color=color, va="center")
                return height
            heights = [place(child) for child in node["children"]]
            at = node["split_round"]
            axes.plot([at, at], [min(heights), max(heights)], color=INNER)
            for child, height in zip(node["children"], heights, strict=True):
                axes.plot([at, nodes[child]["split_round"] or last], [height, height], color=INNER)
            return sum(heights) / len(heights)

        root = place(ROOT)
        axes.plot([0, nodes[ROOT]["split_round"] or last], [root, root], color=INNER)
        for color, family in zip(COLORS, FAMILIES, strict=False):
            axes.plot([], [], color=color, linewidth=4, label=family)
        axes.legend(loc="upper left")
        axes.set(xlabel="round of the split", xlim=(0, last + 1.5))
        axes.set_yticks([])
        axes.grid(visible=False)
        save(figure, path)


def leaves_below(nodes: Mapping[str, Any], name: str) -> list[str]:
    """The leaves under a node, siblings side by side."""
    children = nodes[name]["children"]
    return [leaf for child in children for leaf in leaves_below(nodes, child)] or [name]


def draw_absent(results: Results, path: Path) -> None:
    """How many newcomers of each absent language went to which language."""
    absent = [n for n in results["newcomers"] if n["language"] in ABSENT]
    rows = sorted({n["language"] for n in absent})
    columns = sorted({name for n in absent for name in n["of"]})
    table = np.zeros((len(rows), len(columns)))
    for n in absent:
        for name in n["of"]:
            table[rows.index(n["language"]), columns.index(name)] += 1
    with new_figure(4.6, 2.6) as figure:
        axes = figure.subplots()
        if absent:
            axes.imshow(table, cmap="Blues", aspect="auto")
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.grid(visible=False)
        axes.set(xlabel="came to the cluster of", ylabel="never there")
        save(figure, path)


ROUNDS = {"num-server-rounds": 24}
FEW_ROUNDS = {"num-server-rounds": 14}
NORMS = {
    # Loose thresholds, chosen by the norms that such runs have.
    **FEW_ROUNDS,
    "split-criterion": "norms",
    "eps1": 1.6,
    "eps2": 1.0,
    "gamma-max": 0.45,
    "linkage": "complete",
    "min-cluster-size": 3,
}
MANY: Mapping[str, Any] = {"num-server-rounds": 60, "fraction-train": 0.1}
SOURCE = "natural groups"

EXPERIMENTS = (
    Experiment(
        "languages",
        SOURCE,
        "14 languages x 10 clients: which character comes next",
        partial(run, name="languages", per_language=10, more=ROUNDS),
        draw,
    ),
    Experiment(
        "languages-many",
        SOURCE,
        "14 languages x 70 clients, a tenth of them a round",
        partial(run, name="languages-many", per_language=70, more=MANY),
        draw,
    ),
    Experiment(
        "languages-compared",
        SOURCE,
        "14 languages x 2 clients: CFL, FL, a model a family, every client alone",
        partial(run, name="languages-compared", per_language=2, more=FEW_ROUNDS, against=True),
        draw,
    ),
    Experiment(
        "languages-tree",
        SOURCE,
        "14 languages x 4 clients, split in two again and again as in the paper",
        partial(run_tree, name="languages-tree", per_language=4, more=NORMS),
        draw_tree,
    ),
    Experiment(
        "languages-absent",
        SOURCE,
        "four languages left out, and where their newcomers go",
        partial(run_absent, name="languages-absent", per_language=4, more=FEW_ROUNDS),
        draw_absent,
    ),
)
