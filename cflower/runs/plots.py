"""Pictures for papers, as PNG, SVG and PDF: of one run, and of several side by side."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.criteria import Outcome
from cflower.algorithm.tree import ROOT
from cflower.errors import ConfigError
from cflower.messages.metrics import Metric
from cflower.ordering import only
from cflower.runs.baselines import BASELINES
from cflower.runs.compare import by_seeds
from cflower.runs.findings import baselines_of, common_score, lasting
from cflower.runs.record import Line, RecordedMatrix, RunRecord
from cflower.runs.report.matrices import sides_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.floating]
COLORS = ("#0b6fb8", "#c9500a", "#c4738d", "#410d93", "#413300", "#68004f")
"""Distinguishable in all common kinds of colour blindness; the report uses them too."""
COMMON = "common model at the end"
INNER = "#7b828a"
ENDINGS = ("png", "svg", "pdf")
MOST_LABELS = 30
"""Largest number of clients that are named at a matrix."""
MOST_CURVES = 8
"""Largest number of clusters that are named in the picture of norms."""
DASHES = ("-", "--", ":", "-.")
BLACK: dict[str, Any] = {"color": "black", "linewidth": 1}
AT_EDGE: dict[str, Any] = {"xycoords": ("axes fraction", "data")}
LABEL: dict[str, Any] = {
    "textcoords": "offset points",
    "va": "center",
    "fontsize": 8,
    "bbox": {"boxstyle": "round,pad=0.2", "color": "white"},
}
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


def write_figures(run: RunRecord, folder: Path) -> list[Path]:
    """Write ``accuracy``, ``norms``, ``tree`` and the matrix of every split; return the files."""
    pictures = {"accuracy": accuracy_picture, "norms": norm_picture, "tree": tree_picture}
    written = []
    for name, draw in pictures.items():
        with new_figure(4.6, 3.2) as figure:
            draw(figure.subplots(), run)
            written += save(figure, folder / name)
    for line in run.lines:
        if line["decision"] == Outcome.SPLIT and (matrix := run.matrix(line)):
            with new_figure(4.6, 3.8) as figure:
                matrix_picture(figure.subplots(), run, line, matrix)
                written += save(figure, folder / f"similarity-{line['round']}-{line['cluster']}")
    return written


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
        in_percent(left, metric)
        in_percent(right, metric)
        left.set(xlabel="round", ylabel=f"mean {metric.name} of the clients")
        left.legend(loc="best")
        right.set(ylabel=f"{metric.name} of each client at the end", xticks=range(len(groups)))
        wrap = partial(fill, width=56 // len(groups), break_long_words=True)
        right.set_xticklabels(map(wrap, groups))
        return save(figure, path)


def mean_over_runs(runs: Sequence[RunRecord]) -> tuple[Floats, Floats, Floats]:
    """The rounds in which all runs have scores; mean and standard deviation over the runs."""
    length = min(run.rounds for run in runs)
    means = np.ma.stack([scores_of(run).mean(axis=0)[:length] for run in runs])
    known = np.flatnonzero(means.count(axis=0) == len(runs))
    means = means[:, known]
    return known + 1.0, means.mean(axis=0), means.std(axis=0)


def scores_of(run: RunRecord) -> Any:
    """`RunRecord.scores_by_round`, masked where a client has none."""
    return np.ma.masked_invalid(run.scores_by_round)


def in_percent(axes: "Axes", metric: Metric) -> None:
    """Shares as percentages, as everywhere else."""
    if metric.share:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def accuracy_picture(axes: "Axes", run: RunRecord) -> None:
    """Mean ± standard deviation over the clients by round, with splits and baselines."""
    rounds, mean, _ = mean_over_runs([run])
    std = scores_of(run).std(axis=0)[rounds.astype(int) - 1]
    highest = 1.0 if run.metric.share else np.inf
    upper = np.minimum(mean + std, highest)
    axes.plot(rounds, mean, color=COLORS[0], linewidth=1.8, label="mean of the clients")
    axes.fill_between(rounds, mean - std, upper, color=COLORS[0], alpha=0.2, lw=0, label="± std")
    baselines = baselines_of(run.summary)
    for (key, words), dash in zip(BASELINES.items(), DASHES[1:], strict=False):
        curve = np.array(baselines.get(key, {}).get("by_round", []), float)
        if np.isfinite(curve).any():
            axes.plot(np.arange(1, len(curve) + 1), curve, linestyle=dash, label=words, **BLACK)
    common = common_score(run.summary)
    if common is not None and not baselines:
        axes.axhline(common, linestyle="--", label=COMMON, **BLACK)
    mark_splits(axes, run)
    in_percent(axes, run.metric)
    axes.set(xlabel="round", ylabel=run.metric.name)
    axes.legend(loc="best")


def tree_picture(axes: "Axes", run: RunRecord) -> None:
    """Every cluster from the round of its birth to its split, as high as its number of clients."""
    for name, (low, high) in heights_of(run).items():
        cluster, began, leaf = run.clusters[name], run.born(name), name in run.leaves
        end = max(run.rounds, began + 1) if leaf else cluster["split_round"]
        axes.barh(
            (low + high) / 2,
            end - began,
            high - low,
            began,
            color=color_of(run, name),
            alpha=0.85 if leaf else 0.4,
            edgecolor="white",
        )
        at, offset, side = (end, -4, "right") if leaf else (began, 4, "left")
        text = f"{name} ({len(cluster['members'])})"
        axes.annotate(text, (at, (low + high) / 2), xytext=(offset, 0), ha=side, **LABEL)
    axes.grid(False)
    axes.invert_yaxis()
    axes.set(xlabel="round", yticks=[], ylabel="clients")


def heights_of(run: RunRecord) -> dict[str, tuple[float, float]]:
    """The lower and upper end of each cluster: leaves one after the other, others over theirs."""
    heights, top = dict[str, tuple[float, float]](), 0.0
    for leaf in run.leaves:
        heights[leaf] = top, top + len(run.clusters[leaf]["members"])
        top = heights[leaf][1] + 0.04 * len(run.clusters[ROOT]["members"])
    for name in reversed(list(run.clusters)):  # children come before their parent
        if children := run.clusters[name]["children"]:
            heights[name] = heights[children[0]][0], heights[children[-1]][1]
    return only(heights, run.clusters)


def color_of(run: RunRecord, cluster: str) -> str:
    """The colour of a leaf by its place; grey for clusters that were split."""
    return dict(zip(run.leaves, cycle(COLORS), strict=False)).get(cluster, INNER)


def matrix_picture(axes: "Axes", run: RunRecord, line: Line, matrix: RecordedMatrix) -> None:
    """The cosine similarities at a split, in the order of its sides."""
    sides = sides_of(run, line, matrix)
    order = np.concatenate(sides)
    image = axes.imshow(matrix.values[np.ix_(order, order)], cmap="PRGn", vmin=-1, vmax=1)
    for edge in np.cumsum([len(side) for side in sides])[:-1] - 0.5:
        axes.axhline(edge, **BLACK)
        axes.axvline(edge, **BLACK)
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    if len(order) <= MOST_LABELS:
        axes.set_yticks(range(len(order)), [matrix.clients[i] for i in order], fontsize=6)
    axes.set_title(f"cluster {line['cluster']}, round {line['round']}", fontsize=9)
    figure = cast("Figure", axes.get_figure())
    figure.colorbar(image, ax=axes, label="cosine similarity", shrink=0.85)


def norm_picture(axes: "Axes", run: RunRecord) -> None:
    """‖mean update‖ and largest ‖update‖ of every cluster, with ε1, ε2 and the splits."""
    for name, lines in run.by_cluster.items():
        color, rounds = color_of(run, name), column(lines, "round")
        axes.plot(rounds, column(lines, "mean_norm"), "-", color=color, label=f"cluster {name}")
        axes.plot(rounds, column(lines, "max_norm"), ":", color=color)
    if run.criterion["name"] == "norms":
        for key, symbol in (("eps1", "ε1"), ("eps2", "ε2")):
            value = run.criterion[key]
            axes.axhline(value, linestyle="--", **BLACK)
            axes.annotate(f"{symbol} = {value:g}", (1, value), ha="right", va="bottom", **AT_EDGE)
    mark_splits(axes, run)
    axes.set(xlabel="round", ylim=(0, None))
    axes.set_ylabel("norm: mean update (solid), largest (dotted)", fontsize=8)
    if 0 < len(run.by_cluster) <= MOST_CURVES:
        axes.legend(loc="best")


def mark_splits(axes: "Axes", run: RunRecord) -> None:
    """A dotted line at every round that split a cluster."""
    for server_round in {split["round"] for split in lasting(run.summary["splits"])}:
        axes.axvline(server_round, linestyle=(0, (1, 2)), **BLACK)


def column(lines: Sequence[Line], key: str) -> Floats:
    """One figure of several lines; NaN leaves a gap in rounds without replies."""
    values = np.array([line[key] for line in lines], float)
    replies = [len(line["heard"]) for line in lines]
    return np.where(replies, values, np.nan)


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
