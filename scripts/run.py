"""Measure: ``python scripts/run.py NAME --seeds ... --data ...``; without a name, what there is.

Every measurement leaves small JSON records in the folder ``--out`` and goes on from them after an
interruption. ``--table`` only prints what is there. ``NAME --help`` lists a measurement's options.
"""

import os
import sys
from importlib import import_module

# One core for each process; read when the libraries are loaded.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import typer
from command import start

MEASUREMENTS = {
    "battery": ("families.battery:battery", "families of federations: does a criterion find them?"),
    "audit": ("families.audit:audit", "generated clients: `auto` where groups are and are not"),
    "drift": ("families.drift:drift", "clients that change their group during the run"),
    "newcomers": ("families.newcomers:newcomers", "clients placed after the run"),
    "adversaries": ("adversaries.measure:main", "clients that spoil the training"),
    "statistics": (
        "adversaries.statistics:statistics",
        "clients that spoil single entries that are averaged and not trained",
    ),
    "neutral": ("families.neutral:neutral", "splits that change nothing: are they left alone?"),
    "leavers": (
        "families.leavers:leavers",
        "clients that leave after one round or come under new names",
    ),
    "participation": (
        "families.participation:participation",
        "groups that take part in every second to eighth round only",
    ),
    "liars": ("families.liars:liars", "clients that lie in every evaluation"),
    "kills": ("deployment.kills:kills", "real processes that are killed in mid-run"),
    "curious": ("adversaries.curious:curious", "permuted weights: what replies tell the server"),
    "advice": ("families.advice:advice", "`Advised(FedAvg())`: is its answer right?"),
    "votes": ("families.votes:votes", "simulated replies to a vote"),
    "cost": ("families.cost:cost", "trainings, evaluations and bytes, relative to FedAvg"),
    "peers": ("peers.peers:main", "other methods on the same clients"),
    "pacfl-authors": ("peers.authors:main", "PACFL by its authors' script beside ours"),
    "feddag-authors": ("peers.feddag:main", "FedDAG by its authors' script on PACFL's label skew"),
    "keep": ("manifest:keep", "nothing: copies tables to scripts/results, with their origin"),
    "bench": ("benchmarks.bench:bench", "CPU time and memory"),
}
"""By name: the function, and what is measured. All other names are experiments to reproduce."""


def main() -> None:
    """Run the measurement that the first argument names, with the other arguments."""
    name, arguments = (sys.argv[1:2] or [""])[0], sys.argv[2:]
    if name in MEASUREMENTS:
        module, _, function = MEASUREMENTS[name][0].partition(":")
        command = getattr(import_module(module), function)
    else:
        from reproduction.reproduce import all_experiments, command_of

        from cflower.settings import check_choice

        experiments = all_experiments()
        if name in ("", "--help", "--list"):
            print(__doc__)
            for known, (_, what) in MEASUREMENTS.items():
                print(f"{known:22} {what}")
            for experiment in experiments.values():
                print(f"{experiment.name:22} {experiment.source}: {experiment.what}")
            return
        check_choice("measurement", name, (*MEASUREMENTS, *experiments))
        command = command_of(experiments[name])
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(command)
    app(arguments, prog_name=f"run.py {name}")


if __name__ == "__main__":
    start(main)
