"""Pictures for papers, as PNG, SVG and PDF: of one run, and of several side by side."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.criteria import Outcome
from cflower.algorithm.tree import ROOT
from cflower.algorithm.trial import Standing
from cflower.errors import ConfigError
from cflower.runs.baselines import BASELINES, Baseline
from cflower.runs.compare import by_seeds
from cflower.runs.record import Line, RecordedMatrix, RunRecord, lasting
from cflower.runs.report.content import trials
from cflower.runs.report.matrices import sides_of
from cflower.strategy.reports import Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0b6fb8", "#c9500a", "#c4738d", "#410d93", "#413300", "#68004f")
"""Distinguishable in all common kinds of colour blindness; the report uses them too."""
COMMON = "common model at the end"
INNER = "#7b828a"
ENDINGS = ("png", "svg", "pdf")
MOVED = ("origin", "target")
MOST_LABELS = 30
"""More clients are not named beside a matrix."""
HATCHED: dict[str, Any] = {"facecolor": "none", "edgecolor": "white", "hatch": "////", "lw": 0}
MARK: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "fontsize": 7,
    "bbox": {"boxstyle": "circle", "facecolor": "white"},
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
    """``accuracy``, ``norms``, ``tree`` and the matrix of every split; the files written.

    Raises
    ------
    ConfigError
        If matplotlib is missing.
    """
    pictures: dict[str, Callable[[Axes], None]] = {
        "accuracy": lambda axes: accuracy_picture(axes, run),
        "norms": lambda axes: norm_picture(axes, run),
        "tree": lambda axes: tree_picture(axes, run),
    }
    for line in run.lines:
        if line["decision"] == Outcome.SPLIT and (matrix := run.matrix(line)):
            name = f"similarity-{line['round']}-{line['cluster']}"
            pictures[name] = partial(matrix_picture, run=run, line=line, matrix=matrix)
    written = []
    for name, draw in pictures.items():
        with new_figure(4.6, 3.2 if name in ("accuracy", "norms", "tree") else 3.8) as figure:
            draw(figure.subplots())
            written += save(figure, folder / name)
    return written


def write_comparison(runs: Mapping[str, RunRecord], path: Path) -> list[Path]:
    """Mean accuracy over rounds, and every client's accuracy at the end, of several runs.

    Runs that differ only in their seed are one line: their mean, in a band of ± one standard
    deviation over the seeds.

    Parameters
    ----------
    runs : mapping
        By the name each has in the picture.
    path : Path
        With the ending of the wanted format, or without one: all of `ENDINGS`.
    """
    groups = by_seeds(runs)
    with new_figure(8.6, 3.4) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[1.7, 1])
        for i, (name, alike) in enumerate(groups.items()):
            color, dash = COLORS[i % len(COLORS)], ("-", "--", ":", "-.")[i % 4]
            rounds, mean, band = mean_over_runs(alike)
            left.plot(rounds, mean, dash, color=color, label=name, linewidth=1.8)
            if len(alike) > 1:
                left.fill_between(rounds, mean - band, mean + band, color=color, alpha=0.2, lw=0)
            final = [score for run in alike for score in final_scores(run)]
            spread = np.linspace(-0.25, 0.25, len(final)) if len(final) > 1 else [0.0]
            right.scatter(i + np.asarray(spread), final, s=9, color=color, alpha=0.6)
            if final:
                right.plot([i - 0.35, i + 0.35], [np.mean(final)] * 2, color=color, lw=2.5)
        metric = next(iter(runs.values())).metric
        for axes in (left, right):
            in_percent(axes, metric)
        left.set(xlabel="round", ylabel=f"mean {metric.name} of the clients")
        left.legend(loc="best")
        right.set(ylabel=f"{metric.name} of each client at the end", xticks=range(len(groups)))
        right.set_xticklabels(
            [fill(name, 56 // len(groups), break_long_words=True) for name in groups]
        )
        return save(figure, path)


def mean_over_runs(
    runs: Sequence[RunRecord],
) -> tuple[list[int], NDArray[np.floating], NDArray[np.floating]]:
    """The rounds that all of them have, and mean and standard deviation over the runs."""
    means = [
        dict(zip(rounds, (mean for mean, _ in mean_and_std(values)), strict=True))
        for rounds, values in map(client_accuracies, runs)
    ]
    rounds = sorted(set.intersection(*map(set, means)))
    table = np.array([[mean[server_round] for server_round in rounds] for mean in means])
    return rounds, table.mean(0), table.std(0)


def final_scores(run: RunRecord) -> list[float]:
    """The leading metric of every client that has it."""
    name = run.metric.name
    return [client[name] for client in run.summary["clients"].values() if name in client]


def in_percent(axes: "Axes", metric: Metric) -> None:
    """Shares as percentages, as everywhere else."""
    if metric.share:
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def accuracy_picture(axes: "Axes", run: RunRecord) -> None:
    """Mean ± standard deviation over the clients by round, with splits and baselines."""
    rounds, values = client_accuracies(run)
    spread = np.array(mean_and_std(values)).reshape(-1, 2)
    mean, std = spread[:, 0], spread[:, 1]
    axes.plot(rounds, mean, color=COLORS[0], linewidth=1.8, label="mean of the clients")
    ends = (mean - std, np.minimum(mean + std, 1.0) if run.metric.share else mean + std)
    axes.fill_between(rounds, *ends, color=COLORS[0], alpha=0.2, lw=0, label="± std")
    name, measured = run.metric.name, run.summary["baselines"] or {}
    for (key, line), dash in zip(measured.items(), ("--", ":"), strict=False):
        style: dict[str, Any] = {"color": "black", "linestyle": dash, "linewidth": 1}
        style["label"] = BASELINES[cast(Baseline, key)]
        curve = np.array(line.get("by_round", []), float)
        if np.isfinite(curve).any():
            axes.plot(np.arange(1, len(curve) + 1), curve, **style)
        elif line[name] is not None:  # of version 0.3
            axes.axhline(line[name], **style)
    common = run.summary["metrics"].get(f"fl_{name}")
    if not measured and lasting(run.summary["splits"]) and common is not None:
        axes.axhline(common, color="black", linestyle="--", linewidth=1, label=COMMON)
    mark_splits(axes, run)
    in_percent(axes, run.metric)
    axes.set(xlabel="round", ylabel=name)
    axes.legend(loc="best")


def tree_picture(axes: "Axes", run: RunRecord) -> None:
    """Every cluster from the round it was born to its split, as high as its clients are many.

    Hatched: on trial; ticks and crosses: what came of it. Arrows: clients that moved.
    """
    leaves = {name: i for i, name in enumerate(run.leaves)}
    gap = 0.04 * len(run.clusters[ROOT]["members"])
    tops = np.cumsum([0.0, *(len(run.clusters[name]["members"]) + gap for name in leaves)])
    places = {}
    # A cluster reaches over the leaves below it, which are next to each other.
    for name, cluster in run.clusters.items():
        below = [i for leaf, i in leaves.items() if leaf == name or leaf.startswith(f"{name}.")]
        top, bottom = tops[min(below)], tops[max(below) + 1] - gap
        places[name] = middle, tall = (top + bottom) / 2, bottom - top
        began = run.born(name)
        end = cluster["split_round"] if cluster["children"] else max(run.rounds, began + 1)
        axes.barh(
            middle,
            (end or began) - began,
            tall,
            began,
            color=COLORS[leaves[name] % len(COLORS)] if name in leaves else INNER,
            alpha=0.85 if name in leaves else 0.4,
            edgecolor="white",
        )
        axes.annotate(
            f"{name} ({len(cluster['members'])})",
            (end if name in leaves else began, middle),
            xytext=(-4 if name in leaves else 4, 0),
            textcoords="offset points",
            va="center",
            ha="right" if name in leaves else "left",
            fontsize=8,
            bbox={"boxstyle": "round,pad=0.2", "color": "white"},
        )
    for trial in trials(run):
        if trial["cluster"] in places:
            middle, tall = places[trial["cluster"]]
            axes.barh(middle, trial["round"] - trial["began"], tall, trial["began"], **HATCHED)
            axes.annotate(sign_of(trial), (trial["round"], middle), **MARK)
    for move in run.summary.get("moves", []):
        if {move["origin"], move["target"]} <= set(places):
            low, high = ((move["server_round"], places[move[key]][0]) for key in MOVED)
            axes.annotate("", high, low, arrowprops={"arrowstyle": "-|>", "color": "black"})
    axes.grid(False)
    axes.invert_yaxis()
    axes.set(xlabel="round", yticks=[], ylabel="clients")


def sign_of(trial: Mapping[str, Any]) -> str:
    """What came of a trial, as the report has it too.

    >>> [sign_of({"standing": s, "sure": sure}) for s, sure in [("confirmed", 0), ("undone", 1)]]
    ['≈', '✗']
    """
    if trial["standing"] == Standing.CONFIRMED:
        return "✓" if trial["sure"] else "≈"
    return "✗" if trial["standing"] == Standing.UNDONE else "…"


def matrix_picture(axes: "Axes", run: RunRecord, line: Line, matrix: RecordedMatrix) -> None:
    """The cosine similarities at a split, in the order of its sides."""
    sides = sides_of(run, line, matrix)
    order = [i for side in sides for i in side]
    image = axes.imshow(matrix.values[np.ix_(order, order)], cmap="PRGn", vmin=-1, vmax=1)
    for edge in np.cumsum([len(side) for side in sides])[:-1] - 0.5:
        axes.axhline(edge, color="black", linewidth=1)
        axes.axvline(edge, color="black", linewidth=1)
    axes.grid(False)
    names = [matrix.clients[i] for i in order] if len(order) <= MOST_LABELS else []
    axes.set(xticks=[], yticks=range(len(names)))
    axes.set_yticklabels(names, fontsize=6)
    axes.set_title(f"cluster {line['cluster']}, round {line['round']}", fontsize=9)
    figure = axes.get_figure()
    assert figure is not None
    figure.colorbar(image, ax=axes, label="cosine similarity", shrink=0.85)


def norm_picture(axes: "Axes", run: RunRecord) -> None:
    """‖mean update‖ and largest ‖update‖ of every cluster, with ε1, ε2 and the splits."""
    leaves = {name: i for i, name in enumerate(run.leaves)}
    for name, lines in run.by_cluster.items():
        color = COLORS[leaves[name] % len(COLORS)] if name in leaves else INNER
        rounds = [line["round"] for line in lines]
        label = f"cluster {name}" if len(run.by_cluster) <= 8 else None
        axes.plot(rounds, column(lines, "mean_norm"), color=color, linewidth=1.8, label=label)
        axes.plot(rounds, column(lines, "max_norm"), color=color, linewidth=1.2, linestyle=":")
    if run.criterion["name"] == "norms":
        for key, symbol in (("eps1", "ε1"), ("eps2", "ε2")):
            axes.axhline(run.criterion[key], color="black", linestyle="--", linewidth=1)
            axes.annotate(
                f"{symbol} = {run.criterion[key]:g}",
                (1, run.criterion[key]),
                xycoords=("axes fraction", "data"),
                ha="right",
                va="bottom",
            )
    mark_splits(axes, run)
    axes.set(xlabel="round", ylim=(0, None))
    axes.set_ylabel("norm: mean update (solid), largest (dotted)", fontsize=8)
    if run.by_cluster and len(run.by_cluster) <= 8:
        axes.legend(loc="best")


def mark_splits(axes: "Axes", run: RunRecord) -> None:
    """A dotted line at every round that split a cluster."""
    for server_round in sorted({split["round"] for split in lasting(run.summary["splits"])}):
        axes.axvline(server_round, color="black", linestyle=(0, (1, 2)), linewidth=1)


def client_accuracies(run: RunRecord) -> tuple[list[int], list[list[float]]]:
    """The rounds in which clients told the leading metric, and what they told."""
    told: dict[int, list[float]] = {}
    for line in run.lines:
        name = run.metric.name
        found = [m[name] for m in line["clients"].values() if name in m]
        if found:
            told.setdefault(line["round"], []).extend(found)
    return sorted(told), [told[server_round] for server_round in sorted(told)]


def mean_and_std(values: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Mean and standard deviation of each.

    >>> mean_and_std([[0.0, 1.0]])
    [(0.5, 0.5)]
    """
    return [(float(np.mean(found)), float(np.std(found))) for found in values]


def column(lines: Sequence[Line], key: str) -> NDArray[np.floating]:
    """One figure of several lines; NaN leaves a gap where nobody was heard from."""
    heard = [line["decision"] != Outcome.TOO_FEW_HEARD or line["max_norm"] > 0 for line in lines]
    values = [line[key] for line in lines]
    return np.array([v if h else np.nan for v, h in zip(values, heard, strict=True)])


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
            "Pictures need matplotlib, which is not installed: pip install 'cflower[figures]'."
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
