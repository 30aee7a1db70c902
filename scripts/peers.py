"""cflower beside the field: every method on the battery's federations.

    python scripts/peers.py --methods all --families all --seeds 0-1 --out outputs/peers

One run after another, each leaving one small JSON in the output folder: stop the script whenever
you like and start it again, and only what is missing is run. Then the table over all runs in that
folder, and `peers.csv`, `peers.md` and `peers.png`. Other data as for `battery.py`: `--data
mnist=/data/mnist`. The methods are in the folder `peers`, one a file; the thresholds that they
must be given were found with `python scripts/tune_peers.py`, on seeds 20 and 21.
"""

import json
import os
from pathlib import Path
from typing import Annotated

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import typer
from battery import ALL, chosen, folders, numbers
from command import quieten_flower, start, write_table
from federations.planted import FAMILIES, Job, run_config
from peers.contest import BROKEN, NAMES, applies, right_of, run_all
from peers.report import draw, lines, markdown, print_table
from rich.console import Console

from cflower.config import read_overrides
from cflower.errors import ConfigError


def main(
    methods: Annotated[str, typer.Option(help=f"Of: {', '.join((*NAMES, *BROKEN))}.")] = ALL,
    families: Annotated[str, typer.Option(help=f"Of: {', '.join(FAMILIES)}.")] = ALL,
    seeds: Annotated[str, typer.Option(help='Such as "0-1" or "0,2,5-7".')] = "0-1",
    data: Annotated[str, typer.Option(help="digits, or NAME=FOLDER; commas.")] = "digits",
    out: Annotated[Path, typer.Option(help="Where the records go.")] = Path("outputs/peers"),
    rounds: Annotated[int | None, typer.Option(min=1, help="Instead of each family's own.")] = None,
    more: Annotated[str, typer.Option("--set", help='Run config: "key=value ...".')] = "",
    table: Annotated[bool, typer.Option("--table", help="Run nothing.")] = False,
) -> None:
    """Measure; options that name several things take commas, methods and families also "all"."""
    out = out.expanduser().absolute()
    out.mkdir(parents=True, exist_ok=True)
    failed = 0
    if not table:
        quieten_flower()
        keys = read_overrides([more]) if more else {}
        if rounds is not None:
            keys["num-server-rounds"] = rounds
        jobs = [
            Job(name, family, method, seed, run_config(name, folder, family, "auto", seed, keys))
            for seed in numbers(seeds)
            for name, folder in folders(data).items()
            for family in chosen("family", families, FAMILIES)
            for method in chosen(
                "method", methods, dict.fromkeys(NAMES if methods == ALL else (*NAMES, *BROKEN))
            )
        ]
        failed = run_all([job for job in jobs if applies(job.criterion, right_of(job))], out)
    records = [json.loads(path.read_text()) for path in out.glob("*--*.json")]
    if not records:
        raise ConfigError(f"There are no runs in {out}.")
    console = Console()
    print_table(records, console if console.is_terminal else Console(width=150))
    write_table(lines(records), out / "peers.csv")
    (out / "peers.md").write_text(markdown(records))
    draw(records, out / "peers.png")
    print(f"Written: {out / 'peers.csv'}, {out / 'peers.md'}, {out / 'peers.png'}")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    start(lambda: typer.run(main))
