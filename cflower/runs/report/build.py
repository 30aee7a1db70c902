"""`make page`: the page's HTML, CSS and JavaScript joined into one file that a FAB lets through.

A Flower app bundle takes JSON along, but neither ``.html`` nor ``.css`` nor ``.js`` files. Every
node is sent this file, so its content is compressed.
"""

import json
import zlib
from base64 import b85encode
from itertools import chain
from pathlib import Path

SOURCES = Path(__file__).with_name("page")
JOINED = Path(__file__).with_name("page.json")


def sources() -> dict[str, str]:
    paths = sorted(chain.from_iterable(map(SOURCES.glob, ("*.js", "*.css", "*.html"))))
    return {path.name: path.read_text(encoding="utf-8") for path in paths}


if __name__ == "__main__":
    packed = zlib.compress(json.dumps(sources()).encode(), 9)
    JOINED.write_text(json.dumps({"zlib, base85": b85encode(packed).decode()}) + "\n")
