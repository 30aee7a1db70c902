"""Previews of the clients' data, where the run knows them: only in simulation."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
from PIL import Image

from cflower.ordering import only, without
from cflower.runs.record import RunRecord

ROOM = 600_000
"""Bytes for the sample images of a page."""


def client_data(run: RunRecord, names: Sequence[str]) -> dict[str, Any] | None:
    """Class names, label counts by client, and sample images for as many as there is room for."""
    clients = run.data["clients"]
    if not clients:
        return None
    samples = {name: samples_of(one) for name, one in clients.items() if "sample_images" in one}
    step = 1 + sum(len(one["sheet"]) for one in samples.values()) // ROOM
    kept = dict(islice(samples.items(), 0, None, step))
    return {
        "means": mean_examples(run),
        "classes": run.data["class_names"],
        "counts": [clients.get(name, {}).get("label_counts") for name in names],
        "samples": list(map(kept.get, names)),
    }


def mean_examples(run: RunRecord) -> dict[str, list[Any]] | None:
    """Mean example of each leaf and class, by channel; None if the clients sent none.

    Clients with data of another shape than most are left out, and those that moved: they
    reported their data before these changed.
    """
    moved = set(map(itemgetter("client"), run.summary["moves"]))
    by_shape: dict[tuple[int, ...], dict[str, Any]] = {}
    for name, preview in without(run.data["clients"], moved).items():
        if "mean_examples" in preview:
            shape = (len(preview["label_counts"]), *preview["mean_shape"])
            by_shape.setdefault(shape, {})[name] = preview
    if not by_shape:
        return None
    shape = max(by_shape, key=lambda shape: len(by_shape[shape]))
    means = {}
    for leaf in run.leaves:
        members = only(by_shape[shape], run.clusters[leaf]["members"])
        if members:
            means[leaf] = mean_of(list(members.values()), shape)
    return means


def mean_of(previews: Sequence[Mapping[str, Any]], shape: tuple[int, ...]) -> list[Any]:
    """The mean example of each class over some clients; None for a class that no client has.

    Clients are weighted by their examples of the class.
    """
    coded = b"".join(map(b64decode, map(itemgetter("mean_examples"), previews)))
    means = np.frombuffer(coded, np.float16).astype(float).reshape(len(previews), *shape)
    counts = np.array([*map(itemgetter("label_counts"), previews)], float)[:, :, None, None]
    known = np.ma.masked_invalid(means)
    mean = np.ma.average(known, axis=0, weights=np.broadcast_to(counts, means.shape))
    rounded = np.ma.filled(mean, np.nan).round(3)
    return [None if np.isnan(one).any() else one.tolist() for one in rounded]


def samples_of(preview: Mapping[str, Any]) -> dict[str, Any]:
    """A client's sample images below each other as a PNG in a data URL, and their labels.

    In ``clients.json``, ``sample_images`` is base64 of bytes in the order n, height, width,
    channels.
    """
    height, width, channels = preview["sample_shape"]
    pixels = b64decode(preview["sample_images"])
    count = len(pixels) // (height * width * channels)
    mode = "RGB" if channels == 3 else "L"
    buffer = BytesIO()
    Image.frombytes(mode, (width, height * count), pixels).save(buffer, "PNG")
    sheet = "data:image/png;base64," + b64encode(buffer.getvalue()).decode()
    return {"sheet": sheet, "labels": preview["sample_labels"], "shape": preview["sample_shape"]}
