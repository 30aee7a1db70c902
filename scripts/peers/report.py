"""The lines of the peers' tables: one a run, and one for each method over all its runs."""

import re
from collections.abc import Sequence
from statistics import median
from typing import Any

from records import Record
from tables import names, spread

from peers.contest import NAMES

ROUNDING = 1e-9
"""Accuracies that differ by less are the same."""
COLUMNS = (
    "data", "family", "method", "seed", "groups", "found", "exact", "adjusted_rand_index",
    "accuracy", "worst", "down", "up", "client_seconds", "server_seconds", "given",
)  # fmt: skip


def lines(records: Sequence[Record], families: Sequence[str]) -> list[Record]:
    """One line for each run, in the order of the tables."""
    place = {name: i for i, name in enumerate((*families, *NAMES))}
    order = sorted(
        records,
        key=lambda r: (r["data"], place[r["family"]], place[r["method"]], r["seed"]),
    )
    rounded = ("accuracy", "worst", "adjusted_rand_index", "client_seconds", "server_seconds")
    return [
        {
            column: round(record[column], 4)
            if column in rounded and record[column] is not None
            else record[column]
            for column in COLUMNS
        }
        for record in order
    ]


def summary_lines(records: Sequence[Record]) -> list[dict[str, Any]]:
    """One line for each method, over all its runs.

    Not all methods have run everywhere (IFCA with one model too few needs two groups): beside a
    method's accuracy stands how it differs from cflower's on the very same federations and seeds.
    """
    found = []
    for data in names(records, "data"):
        of_data = [r for r in records if r["data"] == data]
        ours = {
            (r["family"], r["seed"]): r["accuracy"] for r in of_data if r["method"] == "cflower"
        }
        for method in names(of_data, "method", NAMES):
            runs = [r for r in of_data if r["method"] == method]
            grouped = [r for r in runs if r["exact"] is not None]
            gains = {
                (r["family"], r["seed"]): r["accuracy"] - ours[r["family"], r["seed"]]
                for r in runs
                if (r["family"], r["seed"]) in ours
            }
            beside = method != "cflower" and len(gains) == len(runs)
            wins = [sum(sign * gain > ROUNDING for gain in gains.values()) for sign in (1, -1)]
            found.append(
                {
                    "data": data,
                    "method": method,
                    "runs": len(runs),
                    "exact": f"{sum(r['exact'] for r in grouped)}" if grouped else "-",
                    "accuracy": spread([(r["seed"], r["accuracy"]) for r in runs]),
                    "less cflower's": spread([(seed, gain) for (_, seed), gain in gains.items()])
                    if beside
                    else "-",
                    "better, worse": "{}, {}".format(*wins) if beside else "-",
                    "worst client": spread([(r["seed"], r["worst"]) for r in runs]),
                    "MB": f"{median(r['down'] + r['up'] for r in runs) / 1e6:.1f}",
                    "server s": f"{median(r['server_seconds'] for r in runs):.2f}",
                    "clients s": f"{median(r['client_seconds'] for r in runs):.1f}",
                    "given": given(runs),
                }
            )
    return found


def given(runs: Sequence[Record]) -> str:
    """What a method was given in these runs; the k of IFCA differs from one to another."""
    texts = dict.fromkeys(r["given"] for r in runs)
    if len(texts) > 1:
        texts = dict.fromkeys(re.sub(r"k = \d+", "k", text) for text in texts)
    return " or ".join(texts) or "-"
