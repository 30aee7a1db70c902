"""What a setting may be: a number in a range or one of some names, checked in one place."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from cflower.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Range:
    """The values a number may take; an open end is written with ``above`` or ``below``."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __str__(self) -> str:
        bounds = {">=": self.least, ">": self.above, "<=": self.most, "<": self.below}
        return " and ".join(f"{sign} {b:g}" for sign, b in bounds.items() if b is not None)

    def __contains__(self, value: float) -> bool:
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )


def number(default: float, **bounds: float) -> Any:
    """A number key with its bounds."""
    return field(default=default, metadata={"range": Range(**bounds)})


def choice(default: str, options: tuple[str, ...]) -> Any:
    """A key with a fixed set of values."""
    return field(default=default, metadata={"options": options})


def check_fields(settings: "DataclassInstance") -> None:
    """Refuse settings with a value outside its field's range or options.

    Raises
    ------
    ConfigError
        For the first such field, by its key.
    """
    for spec in fields(settings):
        value = getattr(settings, spec.name)
        bounds, options = spec.metadata.get("range"), spec.metadata.get("options")
        if bounds is not None and value not in bounds:
            raise ConfigError(f"Got {key_of(spec)}={value!r}, but expected a number {bounds}.")
        if options is not None:
            check_choice(key_of(spec), value, options)


def key_of(spec: "dataclasses.Field[Any]") -> str:
    """The run-config key of a field.

    >>> key_of(fields(Range)[0])
    'least'
    """
    return spec.name.replace("_", "-")


def check_choice(key: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`.

    Parameters
    ----------
    key : str
        The run-config key that the value was given for, named in the error.
    value : str
        What the user wrote.
    choices : iterable of str
        What may be written.

    Raises
    ------
    ConfigError
        If `value` is none of `choices`; names them all, and the nearest.

    Examples
    --------
    >>> check_choice("shift", "rotation", ["none", "rotation"])
    'rotation'
    >>> check_choice("shift", "rotaton", ["none", "rotation"])
    Traceback (most recent call last):
    cflower.errors.ConfigError: shift = 'rotaton' is not known: did you mean 'rotation'? \
It can be none or rotation.
    """
    names = list(choices)
    if value in names:
        return value
    nearest = get_close_matches(value, names, n=1)
    hint = f" did you mean {nearest[0]!r}?" if nearest else ""
    named = [name or '""' for name in names]
    listed = " or ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
    separator = ":" if hint else "."
    raise ConfigError(f"{key} = {value!r} is not known{separator}{hint} It can be {listed}.")
