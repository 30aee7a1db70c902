"""A page with the leading metric by round of several runs: means over seeds, with bands."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.metric import Metric
from cflower.ordering import counted
from cflower.runs.baselines import difference_in_words
from cflower.runs.compare import Group, common_metric, differing, heading_of

WIDTH, HEIGHT, LEFT, BOTTOM = 760, 400, 64, 36
COLOURS = 6
DASHES = ("none", "8 4", "2 4")
"""Of the first six curves, the next six, and all further ones."""
Vector = NDArray[np.floating]
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --page: light-dark(#fafaf8, #14171a);
  --ink: light-dark(#1b1f23, #e9ecef); --soft: light-dark(#565d65, #a5adb5);
  --line: light-dark(#dfe2e5, #343a41); --c0: light-dark(#0b6fb8, #5cb0f2);
  --c1: light-dark(#c9500a, #ff9d57); --c2: light-dark(#c4738d, #c2f5bc);
  --c3: light-dark(#410d93, #6964ef); --c4: light-dark(#413300, #f9ec41);
  --c5: light-dark(#68004f, #e8007a); }}
body {{ margin: 0 auto; max-width: 900px; padding: 12px 20px; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, "Liberation Sans", Arial, sans-serif; }}
h1 {{ font-size: 1.3rem; }} p {{ color: var(--soft); }}
.plot {{ width: 100%; min-width: 540px; height: auto; }}
svg text {{ fill: var(--soft); font-size: 13px; }}
.grid {{ stroke: var(--line); }} .curve {{ fill: none; stroke-width: 2.2; }}
.band {{ opacity: .18; stroke: none; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 3px 14px 3px 0; text-align: left; border-bottom: 1px solid var(--line); }}
td.number {{ text-align: right; white-space: nowrap; }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p>{about}</p>
<div class="scroll" tabindex="0" role="group" aria-label="The curves">
{picture}
</div>
<div class="scroll" tabindex="0" role="group" aria-label="The last round">
<table>
<thead><tr><th scope="col">curve</th><th scope="col">{metric}</th><th scope="col">runs</th>
<th scope="col">last round</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
</main>
</body>
</html>
"""
ABOUT = (
    "The mean over the clients that reported in a round. Where a curve is the mean of several "
    "runs, the band is one standard deviation of the runs to each side."
)


class Curve(NamedTuple):
    """The means of a group of runs by round, shape (rounds,); NaN where none has a figure."""

    name: str
    num_runs: int
    mean: Vector
    deviation: Vector
    """Zero for one run."""


def curves_page(groups: Sequence[Group]) -> str:
    """An HTML document that loads nothing, for groups of runs with the same leading metric."""
    metric = common_metric([run for group in groups for run in group])
    curves = [curve_of(*named) for named in zip(names_of(groups), groups, strict=True)]
    runs = counted(sum(map(len, groups)), "run")
    title = f"{metric.in_full[:1].upper()}{metric.in_full[1:]} of {runs} by round"
    return PAGE.format(
        title=escape(title),
        about=ABOUT,
        metric=escape(metric.name),
        picture=picture(curves, metric, title),
        rows="\n".join(row(number, curve, metric) for number, curve in enumerate(curves)),
    )


def names_of(groups: Sequence[Group]) -> list[str]:
    """The values in which each group differs from the others; its heading without any."""
    keys = {
        key: values for key, values in differing(groups).items() if len(set(map(str, values))) > 1
    }
    names = []
    for number, group in enumerate(groups):
        words = ", ".join(f"{key}={values[number]}" for key, values in keys.items())
        names.append(words or heading_of(group).replace("\n", " "))
    return names


def curve_of(name: str, group: Group) -> Curve:
    """The curve of a group: of each run the mean over its clients, of these mean and deviation."""
    values = np.full((len(group), max(run.rounds for run in group)), np.nan)
    for one, run in zip(values, group, strict=True):
        known = np.isfinite(run.scores_by_round)
        counts, sums = known.sum(axis=0), np.where(known, run.scores_by_round, 0).sum(axis=0)
        one[: run.rounds][counts > 0] = sums[counts > 0] / counts[counts > 0]
    known = np.isfinite(values)
    counts = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, values, 0).sum(axis=0) / counts
    squares = np.where(known, (values - mean) ** 2, 0).sum(axis=0)
    mean[~known.any(axis=0)] = np.nan
    return Curve(name, len(group), mean, np.sqrt(squares / np.maximum(counts - 1, 1)))


def picture(curves: Sequence[Curve], metric: Metric, title: str) -> str:
    """The curves with their bands, as SVG."""
    lows = np.concatenate([curve.mean - curve.deviation for curve in curves])
    highs = np.concatenate([curve.mean + curve.deviation for curve in curves])
    if not np.isfinite(lows).any():
        return "<p>No client reported this metric during the rounds.</p>"
    low, high = float(np.nanmin(lows)), float(np.nanmax(highs))
    high += (high == low) * max(abs(high), 1) / 10
    scale = Scale(max(len(curve.mean) for curve in curves), low, high)
    shapes = [scale.grid(metric), *(scale.shapes(*one) for one in enumerate(curves))]
    label = escape(f"{title}; the table below has the figures of the last round")
    view = f'class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}"'
    return f"<svg {view}>{''.join(shapes)}</svg>"


class Scale(NamedTuple):
    """Where rounds and values are in the picture."""

    rounds: int
    low: float
    high: float

    def x(self, server_round: int) -> float:
        """The place of a round, in pixels from the left."""
        return LEFT + (WIDTH - LEFT - 12) * (server_round - 1) / max(self.rounds - 1, 1)

    def y(self, value: float) -> float:
        """The place of a value, in pixels from the top."""
        return 10 + (HEIGHT - BOTTOM - 10) * (self.high - value) / (self.high - self.low)

    def grid(self, metric: Metric) -> str:
        """Lines and words for some values, and words for some rounds."""
        parts = []
        for value in ticks(self.low, self.high):
            y, words = self.y(value), metric.in_words(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
            place = f'x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end"'
            parts.append(f"<text {place}>{words}</text>")
        for number in [1, *filter(lambda number: number > 1, map(int, ticks(1, self.rounds)))]:
            place = f'x="{self.x(number):.1f}" y="{HEIGHT - 12}" text-anchor="middle"'
            parts.append(f"<text {place}>{number}</text>")
        return "".join(parts)

    def shapes(self, number: int, curve: Curve) -> str:
        """A curve and its band."""
        known = np.flatnonzero(np.isfinite(curve.mean)).tolist()

        def points(values: Vector) -> list[str]:
            return [f"{self.x(r + 1):.1f},{self.y(values[r]):.1f}" for r in known]

        upper, lower = (points(curve.mean + sign * curve.deviation) for sign in (1, -1))
        around = " ".join([*upper, *lower[::-1]])
        band = f'<polygon class="band" points="{around}" fill="var(--c{number % COLOURS})"/>'
        line = f'<polyline class="curve" points="{" ".join(points(curve.mean))}" {look(number)}/>'
        return band + line


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from ``low`` to ``high``, six at most.

    >>> ticks(0.09, 0.97), ticks(1, 30)
    ([0.2, 0.4, 0.6, 0.8], [10.0, 20.0, 30.0])
    """
    rough = (high - low) / 5
    power = 10.0 ** np.floor(np.log10(rough)) if rough > 0 else 1.0
    step = next(power * size for size in (1, 2, 5, 10) if power * size >= rough)
    first, last = np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9)
    return [float(f"{step * number:.12g}") for number in np.arange(first, last + 1)]


def look(number: int) -> str:
    """The colour and dashes of a curve."""
    dashes = DASHES[min(number // COLOURS, len(DASHES) - 1)]
    return f'stroke="var(--c{number % COLOURS})" stroke-dasharray="{dashes}"'


def row(number: int, curve: Curve, metric: Metric) -> str:
    """A curve's row of the table: its line, name, runs, and its last figure."""
    sample = (
        f'<svg viewBox="0 0 32 10" style="width:32px" aria-hidden="true">'
        f'<line x1="0" x2="32" y1="5" y2="5" stroke-width="3" {look(number)}/></svg>'
    )
    known = np.flatnonzero(np.isfinite(curve.mean))
    last, figure = (
        ("-", "-")
        if not known.size
        else (str(known[-1] + 1), metric.in_words(float(curve.mean[known[-1]])))
    )
    if known.size and curve.num_runs > 1:
        figure += f" ± {difference_in_words(float(curve.deviation[known[-1]]), metric, unit='')}"
    cells = [f'<th scope="row">{sample} {escape(curve.name)}</th>']
    cells += [f'<td class="number">{text}</td>' for text in (figure, str(curve.num_runs), last)]
    return f"<tr>{''.join(cells)}</tr>"
