"""cflower against what it could be measured against, each as a ratio in the same run.

    python scripts/run.py bench                                    # everything
    python scripts/run.py bench --only aggregation
    python scripts/run.py bench --quick                            # tiny sizes: does it still run?
    python scripts/run.py bench --alone round stream 1000 1100000  # one peak of memory, in MB
    python scripts/run.py bench --alone memory 10 100              # one peak, in models of 100 M
    python scripts/run.py bench --alone decision auto 10000 1024   # one decision: CPU seconds, GB
    python scripts/run.py bench --alone reply 10                   # one reply's parts, in ms

Prints a table and writes it to ``scripts/results/bench.json``; docs/evidence/performance.md shows
it. A figure that was not measured this time keeps its place there.
"""

import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from command import chosen
from tables import Row, show

from benchmarks import growth, pfl_research, server, simulator
from benchmarks.measure import Figure

MEASUREMENTS: dict[str, Callable[[bool], Iterator[Figure]]] = {
    "aggregation": server.aggregation,
    "decisions": server.decisions,
    "growth": growth.growth,
    "personal": server.personal,
    "pfl": pfl_research.against_pfl,
    "rounds": simulator.rounds,
    "start": simulator.beginnings,
    "written": simulator.written,
}
ALONE = server.ALONE | {"reply": growth.parts_of_a_reply}
RESULTS = Path(__file__).parents[1] / "results" / "bench.json"


def bench(
    alone: Annotated[list[str] | None, typer.Argument(help="After --alone: what.")] = None,
    only: Annotated[str, typer.Option(help=f"Of: {', '.join(MEASUREMENTS)}.")] = "all",
    quick: Annotated[bool, typer.Option(help="Tiny sizes; nothing is written.")] = False,
    one: Annotated[bool, typer.Option("--alone", help="One figure, as JSON.")] = False,
    out: Annotated[Path, typer.Option(help="Where the figures are kept.")] = RESULTS,
) -> None:
    """Measure; ``--only`` takes several names with commas."""
    if one:
        name, *arguments = alone or []
        print(json.dumps(ALONE[name](*arguments)))
        return
    known = json.loads(out.read_text()) if out.exists() and not quick else {}
    for name in chosen("measurement", only, MEASUREMENTS):
        print(f"{name} ...", file=sys.stderr, flush=True)
        figures: list[Figure] = []
        for figure in MEASUREMENTS[name](quick):
            figures.append(figure)
            known[name] = {"machine": machine(), "figures": [f.as_record() for f in figures]}
            if not quick:
                out.write_text(json.dumps(known, indent=1) + "\n")
        if figures:
            show([row_of(figure) for figure in figures], name)


def row_of(figure: Figure) -> Row:
    """A figure's row of the table."""
    return {
        "figure": figure.name,
        "against": figure.against,
        "ours": f"{figure.ours:.3g} {figure.unit}",
        "theirs": f"{figure.theirs:.3g} {figure.unit}",
        "ratio": f"{figure.ratio:.3g}",
        "range": f"{figure.least:.3g} to {figure.most:.3g}" if figure.least else "",
        "goal": f"<= {figure.goal:g}",
        "": "met" if figure.met else "missed",
    }


def machine() -> str:
    """What it was measured on."""
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores of {processor()}, OMP_NUM_THREADS {threads}, load {load:.1f}"


def processor() -> str:
    """The processor's name on Linux; elsewhere its kind."""
    known = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", known.read_text() if known.exists() else "")
    return names[0] if names else platform.machine()
