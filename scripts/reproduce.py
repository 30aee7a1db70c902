"""The experiments of the papers, the lab and the tutorials, one name each.

    python scripts/reproduce.py --list
    python scripts/reproduce.py lab-cfl --data ~/datasets

What an experiment measured is kept as `docs/results/reproduction/NAME.json`, and its picture,
`NAME.png`, is made from that file alone (`--draw` makes it anew). `docs/reproduction.md` sets
the results beside the originals'. Data sets come from `--data DIR`, which holds one folder per
set (`mnist/`, `cifar10/`, ...) that `datasets.load_dataset` reads, else from the Hugging Face
Hub. Run folders go into `--out`; an experiment that was stopped takes its finished runs from there.

`--quick` runs everything at toy size, without downloads, and keeps nothing: CI's proof that no
script has rotted.
"""

import json
import pkgutil
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Annotated

import reproduction
import typer
from command import quieten_flower, start, write_record
from reproduction.experiment import Experiment, Results, Setting

from cflower.errors import ConfigError
from cflower.settings import check_choice

KEPT = Path(__file__).parents[1] / "docs" / "results" / "reproduction"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def reproduce(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...")] = None,
    every: Annotated[bool, typer.Option("--all", help="All experiments.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Say what there is.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Toy size; keeps nothing.")] = False,
    redraw: Annotated[bool, typer.Option("--draw", help="Only draw, from what is kept.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder of data-set folders.")] = None,
    out: Annotated[Path | None, typer.Option(help="For run folders.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Other than 0: results go to --out.")] = 0,
) -> None:
    """Run experiments by name, keep their results and draw them."""
    experiments = all_experiments()
    if listed:
        for experiment in experiments.values():
            print(f"{experiment.name:20} {experiment.source:28} {experiment.what}")
        return
    chosen = list(experiments) if every else names or []
    if not chosen:
        raise ConfigError("Name some experiments, or use --all; --list says what there is.")
    for name in chosen:
        check_choice("experiment", name, tuple(experiments))
    quieten_flower()
    with tempfile.TemporaryDirectory() as passing:
        out = (out or Path(passing if quick else "outputs/reproduction")).expanduser().absolute()
        setting = Setting(quick, out, data and data.expanduser().absolute(), seed)
        for name in chosen:
            make(experiments[name], setting, out if quick or seed else KEPT, redraw)


def make(experiment: Experiment, setting: Setting, kept: Path, redraw: bool) -> None:
    """Measure unless only the picture is wanted; keep and draw."""
    path, began = kept / f"{experiment.name}.json", time.monotonic()
    if redraw:
        if not path.exists():
            raise ConfigError(f"Nothing is kept of {experiment.name}: run it without --draw.")
    else:
        results: Results = experiment.run(setting)
        kept.mkdir(parents=True, exist_ok=True)
        write_record(results, path)
    experiment.draw(json.loads(path.read_text()), path.with_suffix(".png"))
    print(f"{experiment.name}: {time.monotonic() - began:.0f} s, {path} and .png")


def all_experiments() -> dict[str, Experiment]:
    """Those in ``EXPERIMENTS`` of every module of `reproduction`, by name."""
    names = [module.name for module in pkgutil.iter_modules(reproduction.__path__, "reproduction.")]
    return {e.name: e for name in names for e in getattr(import_module(name), "EXPERIMENTS", ())}


if __name__ == "__main__":
    start(app)
