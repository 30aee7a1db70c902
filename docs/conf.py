"""The site that `make docs` builds: these pages, the API from its docstrings, the keys."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import cflower
from cflower.config import RunConfig
from cflower.settings import key_of

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
PYPROJECT = HERE.parent / "pyproject.toml"

project = "cflower"
release = tomllib.loads(PYPROJECT.read_text())["project"]["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
html_theme = "furo"
html_title = "cflower"
html_theme_options = {"top_of_page_buttons": []}
html_show_copyright = False
html_static_path = ["_static"]
html_js_files = ["accessible.js"]
highlight_language = "none"  # of blocks that name no language
smartquotes = False  # quotes in keys are code
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings have them
suppress_warnings = ["myst.strikethrough", "misc.highlighting_failure"]


def write_classes() -> None:
    """The page of all public names, from their docstrings."""
    text = ["# Classes and functions\n"]
    for name in cflower.__all__:
        thing = getattr(cflower, name)
        kind = "autoclass" if isinstance(thing, type) else "autofunction"
        members = "   :members:\n" if kind == "autoclass" else ""
        text.append(f"```{{eval-rst}}\n.. {kind}:: cflower.{name}\n{members}```\n")
    (HERE / "reference" / "classes.md").write_text("\n".join(text))


def explanations() -> dict[str, str]:
    """The comment of every key in pyproject.toml, without its line breaks."""
    section = PYPROJECT.read_text().split("[tool.flwr.app.config]")[1].split("\n[")[0]
    found: dict[str, str] = {}
    key = ""
    for line in section.splitlines():
        if start := re.match(r"([a-z0-9-]+) = .*?(?:\s# (.*))?$", line):
            key, found[start[1]] = start[1], start[2] or ""
        elif more := re.match(r"\s+# (.*)$", line):
            found[key] += f" {more[1]}"
    return found


def write_keys() -> None:
    """The page of all run-config keys, from their declarations in `RunConfig`."""
    said = explanations()
    text = [
        "# Keys of the run config\n",
        "The keys of cflower's own app, for `cflower simulate -c`, `flwr run -c` or a TOML file. A",
        "wrong key, type or value is refused before any training.\n",
        "| key | default | values | meaning |",
        "| --- | --- | --- | --- |",
    ]
    for spec in fields(RunConfig):
        options, bounds = spec.metadata.get("options"), spec.metadata.get("range")
        values = ", ".join(f"`{option}`" for option in options) if options else str(bounds or "")
        meaning = said[key_of(spec)].replace("|", "\\|")
        text.append(f"| `{key_of(spec)}` | `{spec.default!r}` | {values} | {meaning} |")
    (HERE / "reference" / "keys.md").write_text("\n".join(text) + "\n")


def without_files(app: "Sphinx", name: str, source: list[str]) -> None:
    """Name files of the repository that are not on the site instead of linking to them."""

    def plain(link: re.Match[str]) -> str:
        target = ((HERE / name).parent / link[2].partition("#")[0]).resolve()
        return link[0] if target.is_relative_to(HERE) else link[1]

    source[0] = re.sub(r"(?<!!)\[([^\]]+)\]\((\.\.?/[^)\s]+)\)", plain, source[0])


def setup(app: "Sphinx") -> None:
    """Write the generated pages before the others are read."""
    write_classes()
    write_keys()
    app.connect("source-read", without_files)
