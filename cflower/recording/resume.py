"""``config.json``: what a run was started with, and whether one that goes on is still the same."""

import platform
from collections.abc import Container, Mapping
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cflower.errors import RunFolderError
from cflower.privacy.permutation_mod import COMMITMENT
from cflower.strategy.observers import RunStart

MAY_CHANGE = (
    "resume",
    "output-dir",
    "num-server-rounds",
    "node-timeout",
    "round-timeout",
    "round-share",
    "round-seconds",
    "tracker",
    "seed-file",
    "selection",
    "baselines",
)
"""Keys that a resumed run may have other values of."""
PACKAGES = ("cflower", "flwr", "torch", "jax", "numpy", "scipy", "scikit-learn")


def new_run_id(run: int, now: datetime | None = None) -> str:
    """A name that sorts by time and ends in digits of Flower's run id.

    >>> new_run_id(1234567890123, datetime(2026, 1, 31, 9, 5, 7))
    '20260131-090507-890123'
    """
    return f"{now or datetime.now():%Y%m%d-%H%M%S}-{run % 10**6:06d}"


def beginning(run: RunStart, config: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``config.json``."""
    begun = {
        "config": config,
        "settings": dict(run.settings),
        "arrays": [[e.key, list(e.shape), e.dtype.str, e.trained] for e in run.layout.entries],
        "num_rounds": run.num_rounds,
        "versions": versions(),
        "seed": run.settings["seed"],
    }
    if told := {str(f[COMMITMENT]) for f in run.facts.values() if COMMITMENT in f}:
        begun["permutation"] = min(told)
    return begun


def versions() -> dict[str, str]:
    """Of Python and of those of `PACKAGES` that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # another framework's app needs no PyTorch
            continue
    return found


def refuse_another(
    name: str, before: Mapping[str, Any], begun: Mapping[str, Any], may_change: Container[str]
) -> None:
    """Refuse to go on with a run as if it were another one.

    Parameters
    ----------
    name : str
        Of the run.
    before, begun : mapping
        Its ``config.json``, and what that would be now.
    may_change : container of str
        Keys that may have other values.

    Raises
    ------
    RunFolderError
    """
    # Runs of earlier versions have no settings.
    kinds = [kind for kind in ("config", "settings") if kind in before]
    changed = [
        f"{key} was {before[kind].get(key)!r} and is {value!r}"
        for kind in kinds
        for key, value in begun[kind].items()
        if key not in may_change and before[kind].get(key) != value
    ]
    if changed:
        raise RunFolderError(
            f"Cannot resume {name} with another config: {'; '.join(changed)}. "
            "Give the same run config as the first time."
        )
    if before.get("permutation", "") != begun.get("permutation", ""):
        raise RunFolderError(
            f"Cannot resume {name}: its models are permuted with another seed than "
            "the clients have now. Give them the seed file of the first time."
        )
