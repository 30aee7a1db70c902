"""The pictures of docs/gallery.md: each is a run made by this script, or an experiment's.

    python scripts/gallery.py --data ~/datasets
    python scripts/gallery.py digits --out outputs/gallery

The data sets `wrists` and `languages` are folders in `--data`; without it they are left out. A
finished run of the same config in `--out` is taken as it is. Needs Debian's chromium.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from command import quieten_flower, start
from reproduction import languages, wrists
from reproduction.experiment import Setting, simulate
from screenshot import main as screenshot

from cflower.settings import check_choice

PICTURES = Path(__file__).parents[1] / "docs" / "gallery"

Keys = Mapping[str, Any]


def digits(_: Setting) -> Keys:
    """Two groups, one with its digits upside down: what `cflower simulate` does by itself."""
    return {"min-available-nodes": 10}


def label_permutation(_: Setting) -> Keys:
    """Four groups that name the digits differently."""
    return {"shift": "label-permutation", "num-groups": 4, "min-available-nodes": 20}


def drift(_: Setting) -> Keys:
    """Two groups; one client of each changes to the other in mid-run."""
    return {"drift": "15:2=1,25:7=0", "num-server-rounds": 40, "min-available-nodes": 10}


def arms(setting: Setting) -> Keys:
    """Left and right arms."""
    people = {"dataset": setting.source("wrists"), "min-available-nodes": 20}
    return {**wrists.KEYS, **wrists.MODELS["mlp"], **people}


def fourteen_languages(setting: Setting) -> Keys:
    """Two clients of each language."""
    return languages.federation(setting, "languages", 2, languages.FEW_ROUNDS)[0]


PIECES: Mapping[str, Callable[[Setting], Keys]] = {
    "digits": digits,
    "label-permutation": label_permutation,
    "drift": drift,
    "wrists": arms,
    "languages": fourteen_languages,
}
SECTIONS = {"drift": ("tree",), "wrists": ("", "data")}
"""What is shown of a run's page; of the others its top ("")."""
FROM_FOLDERS = ("wrists", "languages")


def gallery(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help=", ".join(PIECES))
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of data-set folders.")] = None,
    out: Annotated[Path, typer.Option(help="For run folders.")] = Path("outputs/gallery"),
    pictures: Annotated[Path, typer.Option(help="For the pictures.")] = PICTURES,
) -> None:
    """Make the runs, then the picture of each one's report."""
    setting = Setting(False, out.expanduser().absolute(), data and data.expanduser().absolute())
    pictures.mkdir(parents=True, exist_ok=True)
    quieten_flower()
    for name in names or [n for n in PIECES if data or n not in FROM_FOLDERS]:
        check_choice("piece", name, tuple(PIECES))
        run = simulate(setting, name, PIECES[name](setting))
        for section in SECTIONS.get(name, ("",)):
            picture = "-".join(filter(None, (name, section)))
            screenshot(run.path, pictures / f"{picture}.png", section)


if __name__ == "__main__":
    start(lambda: typer.run(gallery))
