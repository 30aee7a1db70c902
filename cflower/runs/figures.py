"""`cflower report --figures`: the pictures of the report as files.

The report itself draws them, in a browser without a window, so each picture is drawn by one piece
of code. `page/save.js` answers to the address ``#figures`` with all of them as JSON.
"""

import json
import os
import re
import subprocess
from base64 import b64decode
from collections.abc import Iterable
from html import unescape
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

from cflower.errors import ConfigError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "microsoft-edge", "msedge")
SECONDS = 60
"""Longest time for one call of the browser."""
PAPER = "<style>@page {{size: {width}px {height}px; margin: 0}} body {{margin: 0}}</style>"


def write_figures(report: Path, folder: Path) -> list[Path]:
    """Write every picture of a report as SVG, PNG and PDF; return the files.

    Raises a `ConfigError` if there is no browser that can do it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with TemporaryDirectory(prefix="cflower-figures-") as place:
        for name, picture in pictures_of(report, Path(place)).items():
            stem = re.sub(r"[^\w.-]", "_", name)  # names in the folder of another may be anything
            svg, png, pdf = (folder / f"{stem}.{ending}" for ending in ("svg", "png", "pdf"))
            svg.write_text(picture["svg"], encoding="utf-8")
            png.write_bytes(b64decode(picture["png"].partition(",")[2]))
            paper = Path(place) / "paper.html"
            paper.write_text(PAPER.format(**picture) + picture["svg"], encoding="utf-8")
            options = ["--no-pdf-header-footer", f"--print-to-pdf={pdf.absolute()}"]
            browse(options, paper.as_uri(), place)
            written += [svg, png, pdf]
    return written


def pictures_of(report: Path, place: Path) -> dict[str, dict[str, Any]]:
    """Each picture by its name: ``svg``, ``png`` as a data URL, ``width`` and ``height``."""
    address = f"{report.absolute().as_uri()}#figures"
    page = browse(["--virtual-time-budget=60000", "--dump-dom"], address, place)
    _, opened, rest = page.partition('<pre id="figures">')
    if not opened:
        raise ConfigError(f"The browser drew no pictures of {report}: open it and save them there.")
    pictures: dict[str, dict[str, Any]] = json.loads(unescape(rest.partition("</pre>")[0]))
    return pictures


def browse(options: Iterable[str], address: str, place: Path | str) -> str:
    """What a browser without a window prints for an address."""
    found = filter(None, map(which, (os.environ.get("BROWSER", ""), *BROWSERS)))
    if not (browser := next(found, None)):
        raise ConfigError(
            "Pictures as files need Chromium, Chrome or Edge, but none was found: install one "
            "(such as Debian's chromium), or open report.html and save each picture there."
        )
    # The sandbox does not work for root; the page is the report, which loads nothing.
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    command = [browser, "--headless", "--disable-gpu", "--disable-dev-shm-usage", *sandbox]
    command += [f"--user-data-dir={place}/profile", *options, address]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{browser} cannot draw the pictures: {error}.") from None
    return done.stdout.decode()
