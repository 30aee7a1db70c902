"""Pictures for papers, as PNG and SVG: accuracy, norms, and several runs side by side."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from cflower.algorithm.criteria import Outcome
from cflower.errors import ConfigError
from cflower.runs.record import Line, RunRecord, lasting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0b6fb8", "#c9500a", "#c4738d", "#410d93", "#413300", "#68004f")
"""Distinguishable in all common kinds of colour blindness; the report uses them too."""
COMMON = "common model at the end"
INNER = "#7b828a"
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
    """``accuracy`` and ``norms``, each as PNG and SVG; the files written.

    Raises
    ------
    ConfigError
        If matplotlib is missing.
    """
    with new_figure(4.6, 3.2) as figure:
        accuracy_picture(figure.subplots(), run)
        written = save(figure, folder / "accuracy")
    with new_figure(4.6, 3.2) as figure:
        norm_picture(figure.subplots(), run)
        written += save(figure, folder / "norms")
    return written


def write_comparison(runs: Mapping[str, RunRecord], path: Path) -> list[Path]:
    """Mean accuracy over rounds, and every client's accuracy at the end, of several runs.

    Parameters
    ----------
    runs : mapping
        By the name each has in the picture.
    path : Path
        With the ending of the wanted format, or without one: PNG and SVG.
    """
    with new_figure(8.6, 3.4) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[1.7, 1])
        finals = []
        for i, (name, run) in enumerate(runs.items()):
            color, dash = COLORS[i % len(COLORS)], ("-", "--", ":", "-.")[i % 4]
            rounds, values = client_accuracies(run)
            means = [mean for mean, _ in mean_and_std(values)]
            left.plot(rounds, means, dash, color=color, label=name, linewidth=1.8)
            finals.append(
                [
                    c[run.metric.name]
                    for c in run.summary["clients"].values()
                    if run.metric.name in c
                ]
            )
            spread = np.linspace(-0.25, 0.25, len(finals[-1])) if len(finals[-1]) > 1 else [0.0]
            right.scatter(i + np.asarray(spread), finals[-1], s=9, color=color, alpha=0.6)
            if finals[-1]:
                right.plot([i - 0.35, i + 0.35], [np.mean(finals[-1])] * 2, color=color, lw=2.5)
        left.set(xlabel="round", ylabel=f"mean {run.metric.name} of the clients")
        left.legend(loc="lower right")
        right.set(ylabel=f"{run.metric.name} of each client at the end")
        right.set_xticks(range(len(runs)), list(runs), rotation=20, ha="right")
        return save(figure, path)


def accuracy_picture(axes: "Axes", run: RunRecord) -> None:
    """Mean ± standard deviation over the clients by round, with splits and the FL baseline."""
    rounds, values = client_accuracies(run)
    spread = np.array(mean_and_std(values)).reshape(-1, 2)
    mean, std = spread[:, 0], spread[:, 1]
    axes.plot(rounds, mean, color=COLORS[0], linewidth=1.8, label="mean of the clients")
    axes.fill_between(
        rounds, mean - std, mean + std, color=COLORS[0], alpha=0.2, lw=0, label="± std"
    )
    federated = run.summary["metrics"].get(f"fl_{run.metric.name}")
    if federated is not None:
        axes.axhline(
            federated,
            color="black",
            linestyle="--",
            linewidth=1,
            label=COMMON,
        )
    mark_splits(axes, run)
    axes.set(xlabel="round", ylabel=run.metric.name)
    axes.legend(loc="lower right")


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
    axes.set(xlabel="round", ylabel="norm: mean update (solid), largest (dotted)", ylim=(0, None))
    if run.by_cluster and len(run.by_cluster) <= 8:
        axes.legend(loc="upper right")


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
    """Write a figure in the format of its ending, or as PNG and SVG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = path.suffix in (".png", ".svg", ".pdf")
    paths = [path] if known else [path.with_name(f"{path.name}.{end}") for end in ("png", "svg")]
    for target in paths:
        # No date in the file: the same run gives the same bytes.
        dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(target, metadata=dates.get(target.suffix))
    return paths
