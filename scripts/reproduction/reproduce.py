"""The experiments of the papers, the lab and the tutorials, one name each.

    python scripts/run.py lab-cfl --data ~/datasets

What an experiment measured is kept as `scripts/results/reproduction/NAME.json`. Data sets come from
`--data DIR`, which holds one folder per set (`mnist/`, `cifar10/`, ...) that
`datasets.load_dataset` reads, else from the Hugging Face Hub. Run folders go into `--out`; an
experiment that was stopped takes its finished runs from there.
"""

import pkgutil
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import manifest
import typer
from command import numbers, out_folder, quieten_flower, write_record

import reproduction
from reproduction.experiment import Experiment, Setting

KEPT = Path(__file__).parents[1] / "results" / "reproduction"


def all_experiments() -> dict[str, Experiment]:
    """Those in ``EXPERIMENTS`` of every module of `reproduction`, by name."""
    names = [module.name for module in pkgutil.iter_modules(reproduction.__path__, "reproduction.")]
    return {e.name: e for name in names for e in getattr(import_module(name), "EXPERIMENTS", ())}


def command_of(experiment: Experiment) -> Callable[..., None]:
    """The command that runs an experiment and keeps its results."""

    def reproduce(
        seeds: Annotated[str, typer.Option(help="Others than 0 are kept in --out.")] = "0",
        data: Annotated[Path | None, typer.Option(help="Folder of data-set folders.")] = None,
        out: Annotated[Path, typer.Option(help="For run folders.")] = Path("outputs/reproduction"),
        quick: Annotated[bool, typer.Option("--quick", help="Toy size, no downloads.")] = False,
    ) -> None:
        quieten_flower()
        out = out_folder(out)
        for seed in numbers(seeds):
            setting = Setting(quick, out, data and data.expanduser().absolute(), seed)
            make(experiment, setting, out if quick or seed else KEPT)

    reproduce.__doc__ = f"{experiment.source}: {experiment.what}."
    return reproduce


def make(experiment: Experiment, setting: Setting, kept: Path) -> None:
    """Measure, and keep what was measured."""
    path, began = kept / f"{experiment.name}.json", time.monotonic()
    write_record(experiment.run(setting), path)
    seconds = round(time.monotonic() - began)
    if kept == KEPT:
        record = {"commit": manifest.commit(), "processor": manifest.processor()}
        name = str(path.relative_to(manifest.RESULTS))
        command, took = [manifest.this_command()], {"seconds_taken": seconds}
        manifest.register([manifest.row_of(name, command, [record | took])])
    print(f"{experiment.name}: {seconds} s, {path}")
