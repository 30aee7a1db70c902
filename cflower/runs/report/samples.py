"""What each client's data look like, where the run knows: only in simulation."""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from cflower.runs.record import RunRecord

ROOM = 600_000
"""Bytes for the sample images of a page."""


def client_data(run: RunRecord, names: Sequence[str]) -> dict[str, Any] | None:
    """Class names, label counts by client, and sample images for as many as there is room for."""
    told = run.data.get("clients", {})
    if not told:
        return None
    sheets = {name: sheet for name in names if (sheet := sample_sheet(told.get(name, {})))}
    step = max(1, -(-sum(map(len, sheets.values())) // ROOM))
    kept = set(list(sheets)[::step])
    return {
        "means": mean_examples(run),
        "classes": [str(name) for name in run.data.get("class_names", [])],
        "counts": [told.get(name, {}).get("label_counts") for name in names],
        "samples": [
            {
                "sheet": sheets[name],
                "labels": told[name]["sample_labels"],
                "shape": told[name]["sample_shape"],
            }
            if name in kept
            else None
            for name in names
        ],
    }


def mean_examples(run: RunRecord) -> dict[str, list[Any]] | None:
    """Of each leaf and class the mean over its members' mean examples, by channel; None: not told.

    Members count by their examples of the class. None stands for what nobody has.
    """
    told = {n: one for n, one in run.data.get("clients", {}).items() if "mean_examples" in one}
    if not told:
        return None
    classes = len(run.data["class_names"])
    (shape, _), *_ = Counter(tuple(one["mean_shape"]) for one in told.values()).most_common()
    alike = {n for n, one in told.items() if one["mean_shape"] == [*shape]}
    alike = {n for n in alike if len(told[n]["label_counts"]) == classes}
    # Who moved told what its data were before.
    alike -= {move["client"] for move in run.summary.get("moves", [])}
    found = {}
    for name in run.leaves:
        mine = [told[member] for member in run.clusters[name]["members"] if member in alike]
        if mine:
            coded = b"".join(b64decode(one["mean_examples"]) for one in mine)
            means = np.frombuffer(coded, np.float16).reshape(len(mine), classes, *shape)
            there = np.isfinite(means)
            weights = np.array([one["label_counts"] for one in mine])[:, :, None, None] * there
            sums = weights.sum(0)
            mean = (weights * np.where(there, means, 0).astype(float)).sum(0) / np.maximum(sums, 1)
            found[name] = [
                [[round(value, 3) for value in channel] for channel in curves] if seen else None
                for curves, seen in zip(mean.tolist(), (sums > 0).all((1, 2)), strict=True)
            ]
    return found


def sample_sheet(told: dict[str, Any]) -> str | None:
    """A client's sample images below each other, as a PNG in a data URL.

    Parameters
    ----------
    told : dict
        ``sample_images`` (base64 of bytes in the order n, height, width, channels) and
        ``sample_shape`` ([height, width, channels]) as in ``clients.json``.
    """
    if not told.get("sample_images"):
        return None
    height, width, channels = told["sample_shape"]
    pixels = b64decode(told["sample_images"])
    count = len(pixels) // (height * width * channels)
    # Below each other they are one image as they stand.
    shape = (width, height * count)
    buffer = BytesIO()
    Image.frombytes("RGB" if channels == 3 else "L", shape, pixels).save(buffer, "PNG")
    return "data:image/png;base64," + b64encode(buffer.getvalue()).decode()
