"""What each client's data look like, where the run knows: only in simulation."""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import Any

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
