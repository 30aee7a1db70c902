"""The picture of several runs side by side, as PNG, SVG and PDF; those of one run are the report's.

The scripts of the reproduction draw in the same style.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from cflower.errors import ConfigError
from cflower.runs.compare import by_seeds
from cflower.runs.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.floating]
COLORS = ("#0b6fb8", "#c9500a", "#c4738d", "#410d93", "#413300", "#68004f")
"""Distinguishable in all common kinds of colour blindness; the report uses them too."""
INNER = "#7b828a"
ENDINGS = ("png", "svg", "pdf")
DASHES = ("-", "--", ":", "-.")
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e6e9",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "cflower",
    "savefig.dpi": 200,
}


def write_comparison(runs: Mapping[str, RunRecord], path: Path) -> list[Path]:
    """Mean accuracy over rounds, and every client's accuracy at the end, of several runs.

    Runs that differ only in their seed are one line: their mean, in a band of ± one standard
    deviation over the seeds. The file's ending is its format; without one, all of `ENDINGS`.
    """
    groups = by_seeds(runs)
    metric = next(iter(runs.values())).metric
    with new_figure(8.6, 3.4) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[1.7, 1])
        for i, (name, alike) in enumerate(groups.items()):
            color = COLORS[i % len(COLORS)]
            rounds, mean, band = mean_over_runs(alike)
            left.plot(rounds, mean, DASHES[i % 4], color=color, label=name, linewidth=1.8)
            left.fill_between(rounds, mean - band, mean + band, color=color, alpha=0.2, lw=0)
            final = [score for run in alike for score in run.scores.values()]
            spread = np.linspace(-0.25, 0.25, len(final))
            right.scatter(i + spread, final, s=9, color=color, alpha=0.6)
            if final:
                right.hlines(np.mean(final), i - 0.35, i + 0.35, color=color, lw=2.5)
        for axes in (left, right):
            if metric.share:
                axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        left.set(xlabel="round", ylabel=f"mean {metric.name} of the clients")
        left.legend(loc="best")
        right.set(ylabel=f"{metric.name} of each client at the end", xticks=range(len(groups)))
        wrap = partial(fill, width=56 // len(groups), break_long_words=True)
        right.set_xticklabels(map(wrap, groups))
        return save(figure, path)


def mean_over_runs(runs: Sequence[RunRecord]) -> tuple[Floats, Floats, Floats]:
    """The rounds in which all runs have scores; mean and standard deviation over the runs."""
    length = min(run.rounds for run in runs)
    scores = [np.ma.masked_invalid(run.scores_by_round[:, :length]) for run in runs]
    means = np.ma.stack([one.mean(axis=0) for one in scores])
    known = np.flatnonzero(means.count(axis=0) == len(runs))
    means = means[:, known]
    return known + 1.0, means.mean(axis=0), means.std(axis=0)


@contextmanager
def new_figure(width: float, height: float) -> Iterator["Figure"]:
    """A figure in inches, in this project's style, without a display.

    Raises
    ------
    ConfigError
        If matplotlib is missing.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "Pictures need matplotlib, which is not installed: pip install matplotlib."
        ) from None
    with matplotlib.rc_context(cast(Any, STYLE)):
        yield Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path) -> list[Path]:
    """Write a figure in the format of its ending, or in all of `ENDINGS`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = path.suffix.removeprefix(".") in ENDINGS
    paths = [path] if known else [path.with_name(f"{path.name}.{end}") for end in ENDINGS]
    for target in paths:
        # No date in the file: the same run gives the same bytes.
        dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(target, metadata=dates.get(target.suffix))
    return paths
