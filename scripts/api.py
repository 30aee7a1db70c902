"""The API reference, made from the docstrings: `python scripts/api.py FOLDER` (`make docs`).

Documented are the public names of `cflower` and the modules whose types they hand over.
"""

import sys
from pathlib import Path

import pdoc

import cflower

HANDED_OVER = (
    "cflower.algorithm.criteria",  # Evidence, Decision and Outcome, for a criterion of one's own
    "cflower.strategy.observers",
    "cflower.strategy.reports",  # what an observer receives
    "cflower.strategy.results",  # what ClusteredFL.start returns
    "cflower.errors",
)


def main(folder: Path) -> None:
    """Write the pages."""
    for name in cflower.__all__:  # pdoc looks only at what has been loaded
        vars(cflower)[name] = getattr(cflower, name)
    pdoc.render.configure(docformat="numpy", footer_text=f"cflower {cflower.__version__}")
    pdoc.pdoc("cflower", *HANDED_OVER, output_directory=folder)
    print(f"Written: {folder / 'cflower.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
