"""Previews of the clients' data, where the run knows them: only in simulation."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cflower.ordering import only, without
from cflower.runs.record import RunRecord

ROOM = 600_000
"""Bytes for the sample images of a page."""


def client_data(run: RunRecord) -> dict[str, Any] | None:
    """Class names, label counts by client, and sample images for as many as there is room for."""
    clients = run.data.clients
    if not clients:
        return None
    samples = {name: samples_of(one) for name, one in clients.items() if "sample_images" in one}
    step = 1 + sum(len(one["sheet"]) for one in samples.values()) // ROOM
    kept = dict(islice(samples.items(), 0, None, step))
    means = mean_examples(run)
    curves = means if any("mean_examples" in one for one in clients.values()) else {}
    return {
        "means": {
            leaf: [None if np.isnan(one).any() else one.round(3).tolist() for one in mean]
            for leaf, mean in curves.items()
        },
        "matches": label_matches(means) if means else {},
        "classes": run.data.class_names,
        "counts": [clients.get(name, {}).get("label_counts") for name in run.client_names],
        "samples": list(map(kept.get, run.client_names)),
    }


def mean_examples(run: RunRecord) -> dict[str, NDArray[np.floating]]:
    """Mean example of each leaf and class, shape (classes, ...); NaN for a class without examples.

    Left out are clients with data of another shape than most, and those that moved: they reported
    their data before these changed.
    """
    moved = {move.client for move in run.summary.moves}
    by_shape: dict[tuple[int, ...], dict[str, tuple[Any, Any]]] = {}
    for name, preview in without(run.data.clients, moved).items():
        if (sums := sums_of(preview)) is not None:
            by_shape.setdefault(sums[0].shape, {})[name] = sums
    if not by_shape:
        return {}
    clients = max(by_shape.values(), key=len)
    means = {}
    for leaf in run.leaves:
        if members := only(clients, run.clusters[leaf].members).values():
            sums, counts = (np.sum(part, axis=0) for part in zip(*members, strict=True))
            with np.errstate(invalid="ignore"):
                means[leaf] = sums / counts.reshape(-1, *[1] * (sums.ndim - 1))
    return means


def sums_of(preview: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """The sum of a client's examples of each class, and their numbers; None without a preview."""
    if "mean_examples" in preview:
        counts = np.array(preview["label_counts"], float)
        coded = np.frombuffer(b64decode(preview["mean_examples"]), np.float16).astype(float)
        means = coded.reshape(len(counts), *preview["mean_shape"])
        counts *= np.isfinite(means).all(axis=(1, 2))
        return np.nan_to_num(means) * counts[:, None, None], counts
    if "sample_images" in preview:
        labels = preview["sample_labels"]
        pixels = np.frombuffer(b64decode(preview["sample_images"]), np.uint8).astype(float)
        of_class = np.eye(len(preview["label_counts"]))[labels]
        images = pixels.reshape(len(labels), *preview["sample_shape"])
        return np.tensordot(of_class.T, images, 1), of_class.sum(axis=0)
    return None


def label_matches(means: Mapping[str, NDArray[np.floating]]) -> dict[str, list[tuple[int, int]]]:
    """The labels of each leaf that stand for another label of the first leaf.

    Two labels are partners if the mean example of each is nearest to that of the other. Nothing is
    claimed of a leaf in which fewer than three fifths of the labels have one: its examples are of
    another kind, or its members do not agree.
    """
    matches, (first, *others) = {}, list(means)
    for leaf in others:
        both = (means[first] + means[leaf]).reshape(len(means[leaf]), -1)
        known = np.flatnonzero(np.isfinite(both).all(axis=1))
        if not known.size:  # the leaves share no class
            continue
        one, two = (means[name][known].reshape(len(known), -1) for name in (first, leaf))
        distances = np.linalg.norm(two[:, None] - one, axis=-1)
        nearest, back = distances.argmin(axis=1), distances.argmin(axis=0)
        partners = [(k, int(j)) for k, j in enumerate(nearest) if back[j] == k]
        if 5 * len(partners) >= 3 * len(known):
            matches[leaf] = [(int(known[k]), int(known[j])) for k, j in partners if k != j]
    return {leaf: pairs for leaf, pairs in matches.items() if pairs}


def samples_of(preview: Mapping[str, Any]) -> dict[str, Any]:
    """A client's sample images below each other as a PNG in a data URL, and their labels."""
    _, width, channels = preview["sample_shape"]
    pixels, buffer = b64decode(preview["sample_images"]), BytesIO()
    size = width, len(pixels) // (width * channels)
    Image.frombytes("RGB" if channels == 3 else "L", size, pixels).save(buffer, "PNG")
    sheet = "data:image/png;base64," + b64encode(buffer.getvalue()).decode()
    return {"sheet": sheet, "labels": preview["sample_labels"], "shape": preview["sample_shape"]}
