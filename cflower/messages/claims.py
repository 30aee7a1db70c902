"""Checks of what clients report about themselves: type, length, and printable text.

No text or fact from a client reaches a log, a file or another client without these checks.
"""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, RecordDict

from cflower.ordering import LONGEST_TEXT, line, only

LONGEST_NAME = 200
MOST_ITEMS = 100_000
"""Maximum length of a list, such as the names of classes, and of bytes."""
COMMITMENT = "permutation"
"""The fact with a commitment to the client's seed; clients without it do not permute weights."""


class CheckedFacts(NamedTuple):
    """The usable facts that a client reported, and a sentence for each that was left out."""

    facts: dict[str, Any]
    problems: tuple[str, ...] = ()


class Kind(NamedTuple):
    """The values that a fact may have."""

    accepts: Callable[[Any], bool]
    expected: str
    """Completes "... is 5, not "."""


def is_sized(value: Any, kind: Any, least: int = 0, most: int = MOST_ITEMS) -> bool:
    """Whether a value has one of these types and a length in this range."""
    return isinstance(value, kind) and least <= len(value) <= most


def is_list(value: Any, of: Callable[[Any], bool], least: int = 0, most: int = MOST_ITEMS) -> bool:
    """Whether a value is a list of acceptable items with a length in this range."""
    return is_sized(value, list | tuple, least, most) and all(map(of, value))


def is_whole(value: Any, least: int = 0, most: int = 2**53) -> bool:
    """Whether a value is a whole number in this range; ``True`` is not."""
    return type(value) is int and least <= value <= most


def is_name(value: Any) -> bool:
    """Whether a client or a metric may have this name in files, logs and tables."""
    # safetensors has its own entry __metadata__ in files with an entry for each client.
    usable = is_sized(value, str, 1, LONGEST_NAME) and value != "__metadata__"
    return usable and value.isprintable()


def is_name_or_whole(value: Any, least: int = 0) -> bool:
    """Whether a value is a name or a whole number."""
    return is_name(value) or is_whole(value, least)


NAME = Kind(is_name, "a printable name")
FLAG = Kind(lambda value: isinstance(value, bool), "true or false")
WHOLE_NUMBERS = Kind(partial(is_list, of=is_whole), "a list of whole numbers")
KINDS = {
    "client-id": Kind(
        is_name_or_whole,
        f"a printable name of 1 to {LONGEST_NAME} characters, other than __metadata__",
    ),
    "problem": Kind(lambda value: isinstance(value, str), "a text"),
    "num-partitions": Kind(partial(is_whole, least=1, most=10**6), "a number from 1 to 10^6"),
    "num-examples": Kind(is_whole, "a whole number"),
    "input-shape": Kind(partial(is_list, of=is_whole, most=32), "up to 32 whole numbers"),
    "class-names": Kind(
        partial(is_list, of=partial(is_sized, kind=str, most=LONGEST_TEXT)),
        "a list of short texts",
    ),
    "evaluates-way": FLAG,
    "tells-entropies": FLAG,
    "parts-apart": FLAG,
    "label-counts": WHOLE_NUMBERS,
    "sample-images": Kind(partial(is_sized, kind=bytes), "a few bytes"),
    "sample-shape": Kind(partial(is_list, of=is_whole, least=3, most=3), "three whole numbers"),
    "sample-labels": WHOLE_NUMBERS,
    "mean-examples": Kind(partial(is_sized, kind=bytes, least=1), "a few bytes"),
    "mean-shape": Kind(partial(is_list, of=is_whole, least=2, most=2), "two whole numbers"),
    COMMITMENT: NAME,
    "group": Kind(partial(is_name_or_whole, least=-(2**53)), "a whole number or a name"),
    "best-cluster": NAME,
}
"""The facts that cflower reads."""
PREVIEW = tuple(key for key in KINDS if key.startswith(("sample-", "mean-", "label-")))
"""A client's preview of its data for the report, dropped as a whole if its parts do not fit."""


def facts_in(content: RecordDict, key: str) -> CheckedFacts:
    """The checked facts in a client's reply, from its ConfigRecord under ``key``."""
    record = content.get(key)
    return checked(dict(record.items())) if isinstance(record, ConfigRecord) else CheckedFacts({})


def checked(facts: Mapping[str, Any]) -> CheckedFacts:
    """The facts that cflower reads, if they are of the right kind, with printable texts.

    >>> checked({"client-id": "a", "evaluates-way": 1})
    CheckedFacts(facts={'client-id': 'a'}, problems=('evaluates-way is 1, not true or false',))
    """
    usable, problems = dict[str, Any](), []
    for key, value in only(facts, KINDS).items():
        if KINDS[key].accepts(value):
            usable[key] = printable(value)
        else:
            problems.append(f"{key} is {line(repr(value), 60)}, not {KINDS[key].expected}")
    if not problems and (problem := preview_problem(usable)):
        problems.append(problem)
        usable = {key: value for key, value in usable.items() if key not in PREVIEW}
    return CheckedFacts(usable, tuple(problems))


def preview_problem(facts: Mapping[str, Any]) -> str:
    """Why the parts of a client's preview do not fit together; empty if they do."""
    classes, labels = len(facts.get("class-names", ())), facts.get("sample-labels", ())
    images = len(labels) * prod(facts.get("sample-shape", [0]))
    # Two bytes for each number; the report weights the means by label-counts.
    means = 2 * len(facts.get("label-counts", ())) * prod(facts.get("mean-shape", [0]))
    for key, size, others in (
        ("label-counts", classes, "class-names"),
        ("sample-images", images, "sample-labels and sample-shape"),
        ("mean-examples", means, "label-counts and mean-shape"),
    ):
        if key in facts and len(facts[key]) != size:
            return f"{key} has length {len(facts[key])}, not {size} as {others} require"
    if max(labels, default=-1) >= classes:
        return f"sample-labels are beyond its {classes} classes"
    if facts.get("sample-shape", [1])[-1] not in (1, 3):
        return "sample-shape does not end with 1 or 3 channels"
    return ""


def printable(value: Any) -> Any:
    """A fact with each text as one printable line."""
    if isinstance(value, str):
        return line(value)
    if isinstance(value, list | tuple):
        return [printable(item) for item in value]
    return value
