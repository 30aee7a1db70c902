"""Settings as plain values: what goes into ``config.json`` and a report."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

Plain = (bool, int, float, str, type(None))


def described(thing: Any) -> dict[str, Any]:
    """A criterion or optimizer under its name, with its fields under kebab-case keys.

    >>> from cflower.algorithm.criteria import NeverSplit
    >>> described(NeverSplit())
    {'name': 'never'}
    """
    name = getattr(thing, "name", type(thing).__name__)
    found = {"name": name}
    if is_dataclass(thing):
        for spec in fields(thing):
            value = getattr(thing, spec.name)
            found[spec.name.replace("_", "-")] = value if isinstance(value, Plain) else repr(value)
    return found


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a ConfigRecord that JSON has too: all but bytes.

    >>> plain({"lr": 0.1, "layers": [1, 2], "key": b"secret"})
    {'lr': 0.1, 'layers': [1, 2]}
    """
    return {
        key: value
        for key, value in config.items()
        if not isinstance(value, bytes)
        and not (isinstance(value, list) and any(isinstance(v, bytes) for v in value))
    }
