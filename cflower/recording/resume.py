"""``config.json``: the settings of a run, and which of them may change when it is resumed."""

import platform
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from typing import Any

from cflower.errors import RunFolderError
from cflower.messages.client_names import COMMITMENT, projects
from cflower.ordering import listed, without
from cflower.runs.records import FORMAT, Config
from cflower.runs.run_files import printable
from cflower.strategy.observers import RunStart

WITHOUT_EFFECT = (
    *("output-dir", "resume", "baselines", "run-name", "checkpoint-interval", "tracker"),
    "clients-together",
)
"""Keys that have no effect on the clusters."""
MAY_CHANGE = (
    *(*WITHOUT_EFFECT, "num-server-rounds", "node-timeout", "round-timeout", "round-share"),
    *("round-seconds", "seed-file", "selection"),
)
"""Keys that may have other values in a resumed run."""
PACKAGES = ("cflower", "flwr", "torch", "jax", "numpy", "scipy", "scikit-learn")


def new_run_id(run: int, now: datetime | None = None) -> str:
    """A name that sorts by time and ends in digits of Flower's run id.

    >>> new_run_id(1234567890123, datetime(2026, 1, 31, 9, 5, 7))
    '20260131-090507-890123'
    """
    return f"{now or datetime.now():%Y%m%d-%H%M%S}-{run % 10**6:06d}"


def app_name() -> str:
    """The name of the Flower app in this process: Flower puts its folder on the import path."""
    for _, content in projects():
        if "flwr" in content.get("tool", {}):
            return str(content["project"]["name"])
    return ""


def start_record(run: RunStart, config: dict[str, Any], labels: Mapping[str, Any]) -> Config:
    """The content of ``config.json``; ``labels`` are the names of the app and the run."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # another framework's app needs no PyTorch
            installed[name] = version(name)
    return Config(
        **labels,
        format=FORMAT,
        config=config,
        settings=dict(run.settings),
        arrays=[[e.key, list(e.shape), e.dtype.str, e.trained] for e in run.layout.entries],
        num_rounds=run.num_rounds,
        versions=installed,
        seed=run.settings["seed"],
        permutation=held_by_most(str(f.get(COMMITMENT, "")) for f in run.facts.values()),
    )


def held_by_most(values: Iterable[str]) -> str:
    """The value that most clients have; empty if there is none.

    >>> held_by_most(["b", "b", "a"]), held_by_most(["b", "a"])
    ('b', '')
    """
    counts = Counter(values)
    return next((value for value, count in counts.items() if 2 * count > counts.total()), "")


def check_same_run(name: str, before: Config, now: Config, may_change: Collection[str]) -> None:
    """Refuse to resume a run if its ``config.json`` would now have other values."""
    clients = [part.settings.get("clients", 0) for part in (before, now)]
    if all(clients) and clients[0] != clients[1]:
        raise RunFolderError(
            f"Cannot resume {name} with {clients[1]} simulated clients: it had {clients[0]}. Give "
            "it as many, among which its data are dealt out as before."
        )
    parts = [(before.config, now.config), (before.settings, now.settings)]
    # The seed is in both parts.
    changed = dict.fromkeys(chain.from_iterable(differences(*part, may_change) for part in parts))
    if changed:
        raise RunFolderError(
            f"Cannot resume {name} with another config: {'; '.join(changed)}. "
            "Give the same run config as the first time, or name a key of the app's own that may "
            "change, such as that of more rounds: Recorder(may_change=[...])."
        )
    if before.permutation != now.permutation:
        raise RunFolderError(
            f"Cannot resume {name}: its models are permuted with another seed than "
            "the clients have now. Give them the seed file of the first time."
        )


def other_versions(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """One sentence if a run goes on with other versions than it began with; else empty.

    >>> other_versions({"torch": "2.1", "flwr": "1.4"}, {"torch": "2.2", "flwr": "1.4"})
    'The run began with torch 2.1 and goes on with torch 2.2: its result may be another one than \
without the interruption.'
    """
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if not changed:
        return ""
    old, new = (
        listed([f"{name} {part.get(name, '(missing)')}" for name in changed])
        for part in (before, now)
    )
    return (
        f"The run began with {old} and goes on with {new}: its result may be another one than "
        "without the interruption."
    )


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], may_change: Collection[str]
) -> Iterator[str]:
    """The keys with another value than before, each with both values."""
    values = printable(without({**dict.fromkeys(before), **now}, may_change))
    for key, value in values.items():
        if before.get(key) != value:
            yield f"{key} was {before.get(key)!r} and is {value!r}"
