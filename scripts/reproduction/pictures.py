"""The style of the experiments' pictures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#0b6fb8", "#c9500a", "#c4738d", "#410d93", "#413300", "#68004f")
"""Distinguishable in all common kinds of colour blindness; the report uses them too."""
INNER = "#7b828a"
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e6e9",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "savefig.dpi": 200,
}


@contextmanager
def new_figure(width: float, height: float, path: Path) -> Iterator["Figure"]:
    """A figure in inches, drawn without a display and written to a file at the end."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(cast(Any, STYLE)):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
