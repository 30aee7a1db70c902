"""What each client's data look like, where the run knows: only in simulation."""

import binascii
import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from cflower.runs.record import RunRecord

ROOM = 3_000_000
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
    """A client's sample images side by side, as a PNG in a data URL.

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
    row = width * channels
    rows = [
        b"".join(pixels[(n * height + y) * row : (n * height + y + 1) * row] for n in range(count))
        for y in range(height)
    ]
    image = png(rows, width * count, color=channels == 3)
    return "data:image/png;base64," + b64encode(image).decode()


def png(rows: Sequence[bytes], width: int, *, color: bool) -> bytes:
    r"""A PNG file of rows of bytes, one a pixel, or three in colour.

    >>> png([bytes([0, 255])], 2, color=False)[:8]
    b'\x89PNG\r\n\x1a\n'
    """

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", binascii.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", width, len(rows), 8, 2 if color else 0, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    )
