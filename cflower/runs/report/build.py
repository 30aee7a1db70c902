"""`make page`: the page's HTML, CSS and JavaScript joined into one file that a FAB lets through.

A Flower app bundle takes JSON along, but neither ``.html`` nor ``.css`` nor ``.js`` files.
"""

import json
import re
from pathlib import Path

SOURCES = Path(__file__).with_name("page")
JOINED = Path(__file__).with_name("page.json")
LEFT_OUT = re.compile(r"^\s*//.*\n|^/\*[^*]*\*/\n|^\s+", re.MULTILINE)
"""Comments on lines of their own, and indentation: every node is sent this file."""


def joined() -> str:
    """The text of ``page.json``: every source file by its name."""
    sources = sorted(path for path in SOURCES.iterdir() if path.suffix in (".js", ".css", ".html"))
    parts = {path.name: LEFT_OUT.sub("", path.read_text(encoding="utf-8")) for path in sources}
    return json.dumps(parts, ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    JOINED.write_text(joined(), encoding="utf-8")
