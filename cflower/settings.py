"""The values of a setting: a number in a range or one of some names, checked in one place."""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from numbers import Integral, Real
from types import UnionType
from typing import TYPE_CHECKING, Any, cast, get_args

from cflower.errors import ConfigError, DataError
from cflower.own_code import names_own_code

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

COMPARISONS = {
    "least": (">=", operator.ge),
    "above": (">", operator.gt),
    "most": ("<=", operator.le),
    "below": ("<", operator.lt),
}


@dataclass(frozen=True)
class Range:
    """The values that a number may take: each bound by its name in `COMPARISONS`.

    >>> str(Range({"least": 0, "below": 1})), 1 in Range({"least": 0, "below": 1})
    ('>= 0 and < 1', False)
    """

    bounds: dict[str, float]

    def __str__(self) -> str:
        return " and ".join(f"{COMPARISONS[n][0]} {bound:g}" for n, bound in self.bounds.items())

    def __contains__(self, value: float) -> bool:
        return all(COMPARISONS[name][1](value, bound) for name, bound in self.bounds.items())


def number(default: float | None, **bounds: float) -> Any:
    return field(default=default, metadata={"range": Range(bounds)})


def choice(default: str, options: tuple[str, ...], *, own_code: bool = False) -> Any:
    """A key with a fixed set of values, and ``package.module:name`` if ``own_code``."""
    return field(default=default, metadata={"options": options, "own_code": own_code})


def same(settings: "type[DataclassInstance]", name: str) -> Any:
    """A key with the default and the values of a field of these settings."""
    (spec,) = (spec for spec in fields(settings) if spec.name == name)
    return field(default=spec.default, metadata=spec.metadata)


def key_of(spec: "dataclasses.Field[Any]") -> str:
    """The run-config key of a field.

    >>> key_of(fields(Range)[0])
    'bounds'
    """
    return spec.name.replace("_", "-")


def check_fields(
    settings: "DataclassInstance", name_of: "Callable[[dataclasses.Field[Any]], str]" = key_of
) -> None:
    """Refuse settings of which a value has another type than its field, or is out of range."""
    for spec in fields(settings):
        adapted(spec, getattr(settings, spec.name), name_of(spec))


def adapted(spec: "dataclasses.Field[Any]", value: Any, key: str) -> Any:
    """The value as the field's type, such as a whole number as a float; True is no number."""
    kinds = get_args(spec.type) if isinstance(spec.type, UnionType) else (spec.type,)
    if value is None and type(None) in kinds:
        return None
    if float in kinds or int in kinds:
        bounds, whole = spec.metadata.get("range", Range({})), float not in kinds
        kind, noun = (Integral, "a whole number") if whole else (Real, "a number")
        fits = isinstance(value, kind) and not isinstance(value, bool)
        expected = f"{noun} {bounds}".strip()
        require(fits and math.isfinite(value) and value in bounds, wrong(key, value, expected))
        return value if whole else float(value)
    options = spec.metadata.get("options")
    if bool in kinds:
        require(isinstance(value, bool), wrong(key, value, "true or false"))
    elif str in kinds or options:
        require(isinstance(value, str), wrong(key, value, "a text in quotes"))
    if options and not (spec.metadata["own_code"] and names_own_code(value)):
        check_choice(key, value, options)
    return value


def wrong(key: str, value: object, expected: str) -> str:
    return f"Got {key}={value!r}, but expected {expected}."


class Checked:
    """A base class of dataclasses: each field is checked when an object is made, as `check_fields`.

    >>> from cflower.algorithm.optimizers import ServerOptimizer
    >>> ServerOptimizer(momentum=2)
    Traceback (most recent call last):
    cflower.errors.ConfigError: Got momentum=2, but expected a number >= 0 and < 1.
    """

    def __post_init__(self) -> None:
        check_fields(cast("DataclassInstance", self), operator.attrgetter("name"))


def check_influence(key: str, value: float) -> None:
    require(
        not 0 < value < 1,
        f"Got {key}={value!r}, but expected 0 (no limit) or a number >= 1: below that, usual "
        "clients would count for less.",
    )


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise ConfigError(sentence)


def has_methods(value: object, *names: str) -> bool:
    return all(callable(getattr(value, n, None)) for n in names) and not isinstance(value, type)


def require_data(holds: bool, sentence: str) -> None:
    if not holds:
        raise DataError(sentence)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A colon and a question that names the nearest right name; empty if none is near.

    >>> did_you_mean("rotaton", ["none", "rotation"]), did_you_mean("x", ["none"])
    (": did you mean 'rotation'?", '')
    """
    nearest = get_close_matches(name, names, n=1)
    return f": did you mean {nearest[0]!r}?" if nearest else ""


def check_choice(key: str, value: str, choices: Iterable[str]) -> str:
    """Return what the user wrote for a key if it is one of these.

    >>> check_choice("shift", "rotaton", ["none", "rotation"])
    Traceback (most recent call last):
    cflower.errors.ConfigError: shift = 'rotaton' is not known: did you mean 'rotation'? \
It can be none or rotation.
    """
    names = list(choices)
    if value in names:
        return value
    named = [name or '""' for name in names]
    listed = " or ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
    hint = did_you_mean(value, names)
    raise ConfigError(f"{key} = {value!r} is not known{hint or '.'} It can be {listed}.")
