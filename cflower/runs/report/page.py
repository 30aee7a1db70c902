"""The page itself: its parts put together, and a run's content put into it safely.

The parts are the files in ``page/``, joined into ``page.json`` by `cflower.runs.report.build`.
"""

import json
import re
import zlib
from base64 import b64encode, b85decode
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

SCRIPTS = (
    *("draw", "save", "pick", "facts", "tree", "layers", "moves"),
    *("why", "scores", "similarity", "clients", "data", "start"),
)
"""JavaScript parts in the order they are put together."""


def page(content: dict[str, Any], *, live: bool = False) -> str:
    """The whole HTML document with the result of `page_content`; a ``live`` one reloads itself."""
    scripts = [*SCRIPTS, "reload"] if live else SCRIPTS
    # One scope for all parts: nothing on the page can be reached from outside.
    body = "\n".join(parts()[f"{name}.js"] for name in scripts)
    script = f"(() => {{\n'use strict';\n{body}}})();\n"
    # Nothing may be loaded from anywhere, and only this very script may run.
    allowed = f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"
    values = {
        "policy": policy,
        "title": escape(f"{content['run']['id']} · cflower"),
        "style": parts()["style.css"],
        "content": in_script(content),
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], parts()["page.html"])


def in_script(content: Any) -> str:
    r"""JSON that cannot end the script element it stands in.

    >>> in_script({"name": "</script><b>"})
    '{"name":"\\u003c/script\\u003e\\u003cb\\u003e"}'
    """
    # A config may have infinity or NaN, which JSON has not: they become texts.
    content = json.loads(json.dumps(content), parse_constant=str)
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@cache
def parts() -> dict[str, str]:
    """The page's HTML, CSS and JavaScript by the names of their files."""
    text = files(__package__).joinpath("page.json").read_text(encoding="utf-8")
    packed = b85decode(json.loads(text)["zlib, base85"])
    return dict(json.loads(zlib.decompress(packed)))
