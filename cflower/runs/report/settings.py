"""The keys of a run's config that had an effect, those that were changed marked."""

import re
from collections.abc import Mapping
from typing import Any

from cflower.config import RunConfig

PRIVATE = ("output-dir", "resume", "seed-file")
"""Places on the machine of whoever made the run."""
CLUSTERED, NORMS = ("method", ("clustered",)), ("split-criterion", ("norms",))
NEEDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "split-criterion": CLUSTERED,
    "heard-share": CLUSTERED,
    "similarity-layers": CLUSTERED,
    "projection-dim": CLUSTERED,
    "eps1": NORMS,
    "eps2": NORMS,
    "gamma-max": NORMS,
    "linkage": NORMS,
    "min-cluster-size": NORMS,
    "dirichlet-alpha": ("partitioner", ("dirichlet",)),
    "shards-per-client": ("partitioner", ("shards",)),
    "natural-id-column": ("partitioner", ("natural-id",)),
    "missing-labels": ("shift", ("label-subset",)),
    "server-momentum": ("server-optimizer", ("fedavgm", "fedadam", "fedyogi")),
}
"""Keys that only have an effect where another one, which is in effect too, has such a value."""
FOLDERS = re.compile(r"(?:~|/|[A-Za-z]:\\)[^:;,]*[/\\](?=[^/\\])")


def settings(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Key, value and, where it was changed, the default.

    Keys that cflower does not know, of somebody else's app, are all shown.

    >>> settings({"method": "federated", "eps1": 0.5, "split-criterion": "norms", "rounds": 3})
    [{'key': 'method', 'value': 'federated', 'default': 'clustered'}, {'key': 'rounds', 'value': 3}]
    >>> settings({"dataset": "text:/home/ann/books"})[0]["value"]
    'text:…/books'
    """
    defaults = RunConfig().as_keys()
    shown = []
    for key, value in config.items():
        if key in PRIVATE or value == "" or not in_effect(key, config):
            continue
        entry = {"key": key, "value": FOLDERS.sub("…/", value) if isinstance(value, str) else value}
        changed = key in defaults and defaults[key] != value
        shown.append(entry | ({"default": defaults[key]} if changed else {}))
    return shown


def in_effect(key: str, config: Mapping[str, Any]) -> bool:
    """Whether a key could have made a difference to this run."""
    if key in ("num-groups", "group-sizes"):
        return config.get("shift") != "none"
    if key not in NEEDS:
        return True
    other, values = NEEDS[key]
    return other not in config or (config[other] in values and in_effect(other, config))
