"""Measure cflower against what it could be measured against, each as a ratio in the same run.

    OMP_NUM_THREADS=1 python scripts/bench.py                  # everything
    OMP_NUM_THREADS=1 python scripts/bench.py --only similarity,bipartition
    python scripts/bench.py --quick                            # tiny sizes: does it still run?
    python scripts/bench.py --alone round stream 1000 1100000  # one peak of memory, in MB
    python scripts/bench.py --alone decision auto 10000 1024   # one decision: CPU seconds and GB

Prints a table and writes it to ``docs/results/bench.json``; `docs/performance.md` shows it. A
figure that was not measured this time keeps its place there.
"""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from benchmarks import clients, flower, growth, server
from benchmarks.measure import Figure
from rich.console import Console
from rich.table import Table

MEASUREMENTS: dict[str, Callable[[bool], Iterator[Figure]]] = {
    "similarity": server.similarity,
    "bipartition": server.bipartitions,
    "aggregation": server.aggregation,
    "decisions": growth.decisions,
    "growth": growth.growth,
    "simulation": clients.simulation,
    "flwr": flower.under_flower,
}
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "bench.json"


def bench(
    only: Annotated[str, typer.Option(help=f"Of: {', '.join(MEASUREMENTS)}.")] = "",
    quick: Annotated[bool, typer.Option(help="Tiny sizes; nothing is written.")] = False,
    out: Annotated[Path, typer.Option(help="Where the figures are kept.")] = RESULTS,
) -> None:
    """Measure; ``--only`` takes several names with commas."""
    names = only.split(",") if only else list(MEASUREMENTS)
    if unknown := set(names) - set(MEASUREMENTS):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: expected any of {', '.join(MEASUREMENTS)}."
        )
    known = json.loads(out.read_text()) if out.exists() and not quick else {}
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        figures: list[Figure] = []
        for figure in MEASUREMENTS[name](quick):
            figures.append(figure)
            known[name] = {"machine": machine(), "figures": [f.as_record() for f in figures]}
            if not quick:
                out.write_text(json.dumps(known, indent=1) + "\n")
        show(name, figures)


def show(name: str, figures: list[Figure]) -> None:
    """The table of one measurement."""
    table = Table(title=name, title_justify="left", box=None)
    for column in ("figure", "against", "ours", "theirs", "ratio", "on the clock", "goal", ""):
        table.add_column(column, no_wrap=True)
    for f in figures:
        table.add_row(
            f.name,
            f.against,
            f"{f.ours:.3g} {f.unit}",
            f"{f.theirs:.3g} {f.unit}",
            f"{f.ratio:.3g}",
            "" if f.wall_ratio is None else f"{f.wall_ratio:.3g}",
            f"{'>=' if f.at_least else '<='} {f.goal:g}",
            "met" if f.met else "missed",
        )
    Console(width=200).print(table)


def machine() -> str:
    """What it was measured on."""
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores of {processor()}, OMP_NUM_THREADS {threads}, load {load:.1f}"


def processor() -> str:
    """The processor's name, family and model on Linux; elsewhere its kind."""
    try:
        lines = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return platform.machine()
    entries = (line.split(":", 1) for line in lines if ":" in line)
    values = {key.strip(): value.strip() for key, value in entries}
    name = values.get("model name", platform.machine())
    return f"{name} (family {values.get('cpu family', '?')}, model {values.get('model', '?')})"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        print(json.dumps(server.ALONE[sys.argv[2]](*sys.argv[3:])))
    else:
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command()(bench)
        app()
