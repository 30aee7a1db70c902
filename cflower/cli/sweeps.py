"""`cflower sweep`: the runs of all combinations of some values, each in a run folder."""

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cflower.cli.apps import Runnable
from cflower.cli.started import start_of
from cflower.config import WITHOUT_EFFECT, check_override, read_overrides
from cflower.ordering import without
from cflower.recording.progress import Steps
from cflower.runs.findings import headline
from cflower.runs.record import RunRecord
from cflower.runs.run_files import run_folders
from cflower.settings import require

if TYPE_CHECKING:
    from flwr.app import Context

    from cflower.simulation.inline_grid import InlineGrid

VALUE = r"""'[^']*'|"[^"]*"|[^\s,'"]+"""
PAIR = rf"(\S+?)=((?:{VALUE})(?:,(?:{VALUE}))*)"


def run_once(run: Runnable, runs: Path) -> None:
    """Run an app with a folder among ``runs``, or resume it; nothing if that is finished."""
    before = folder_with(runs, run)
    if before and RunRecord(before).finished:
        return print("  finished before")
    server_app, recorder = run.load("serverapp"), run.recorder(runs, str(before or ""))

    def train(grid: "InlineGrid", context: "Context") -> None:
        start = start_of(server_app, grid, context.run_config)
        strategy = start.clustered
        observers = [recorder, Steps(print)]
        start.train(grid, strategy, observers, start.num_rounds, start.evaluate_fn)

    run.simulate(train)
    print(f"  {headline(RunRecord(recorder.path).summary)}")


def folder_with(runs: Path, run: Runnable) -> Path | None:
    """The folder of an earlier run of this app with the same config and number of clients."""

    def text_of(config: Mapping[str, Any]) -> str:
        return json.dumps(without(config, WITHOUT_EFFECT), default=str, sort_keys=True)

    for folder in run_folders(runs):
        begun = RunRecord(folder)
        same = text_of(begun.config) == text_of(run.config)
        if same and begun.settings.get("clients", run.num_clients) == run.num_clients:
            return folder
    return None


def name_of(app: Path | None, config: Sequence[str], clients: int | None) -> str:
    """The name of a sweep's folder: the same for the same command."""
    content = [str(app and app.expanduser().absolute()), list(config), clients]
    return f"sweep-{sha256(json.dumps(content).encode()).hexdigest()[:8]}"


def combinations_of(config: Sequence[str]) -> list[dict[str, Any]]:
    """Each combination of the values that keys have in the texts of ``-c``.

    A TOML file among them has one value for each key. `ConfigError` as in `read_overrides`, and if
    no key has several values.

    >>> combinations_of(["seed=0,1 model='mlp','cnn'"])[1:3]
    [{'seed': 0, 'model': 'cnn'}, {'seed': 1, 'model': 'mlp'}]
    """
    files = [text for text in config if text.endswith(".toml") and "=" not in text]
    base, values = read_overrides(files), dict[str, list[str]]()
    for text in without(dict.fromkeys(config), files):
        for key, given in re.findall(PAIR, text):
            values[key] = re.findall(VALUE, given)
        first = re.sub(PAIR, lambda pair: f"{pair[1]}={re.findall(VALUE, pair[2])[0]}", text)
        check_override(first, "-c")
    require(
        any(len(given) > 1 for given in values.values()),
        'Got no key with several values, but a sweep needs one, such as -c "seed=0,1,2".',
    )
    texts = (
        " ".join(map("=".join, zip(values, one, strict=True))) for one in product(*values.values())
    )
    return [base | read_overrides([text]) for text in texts]
