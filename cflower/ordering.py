"""Names in natural order and in words, mappings by name, and numbers with their nouns."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TypeVar
from unicodedata import category

Value = TypeVar("Value")
LONGEST_TEXT = 500
"""Characters of a text from outside that are shown."""


@lru_cache(maxsize=2**17)  # the same names are sorted in every round
def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts partition-2 before partition-10.

    >>> sorted(["partition-10", "partition-2"], key=natural_order)
    ['partition-2', 'partition-10']
    """
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    order = ((0, int(p), "") if p.isdecimal() and len(p) < 99 else (1, 0, p) for p in parts)
    return (*order, (-1, 0, name))  # the name itself distinguishes 7 from 007


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names, key=natural_order))


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun, in the plural unless it is 1.

    >>> counted(1, "round"), counted(2, "round"), counted(0, "reply", "replies")
    ('1 round', '2 rounds', '0 replies')
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def line(text: object, most: int = LONGEST_TEXT) -> str:
    r"""A text from outside as one line of printable characters.

    >>> line("\x1b]0;me\x07 two\nlines"), line("a" * 600)[-20:]
    (' ]0;me  two lines', '... (600 characters)')
    """
    text = str(text)
    if len(text) > most:
        return f"{line(text[:most], most)}... ({len(text)} characters)"
    if text.isprintable():  # thousands of clients report names of classes
        return text
    return "".join(c if c.isprintable() or category(c) == "Zs" else " " for c in text)


def listed(names: Iterable[str], most: int = 12, longest: int = 60) -> str:
    """The first names, which may come from outside, each on one line; the number of the others.

    >>> listed(["a", "b"]), listed(map(str, range(20)), 2), listed([])
    ('a, b', '0, 1 and 18 more', 'none')
    """
    names = list(names)
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return (", ".join(line(name, longest) for name in names[:most]) or "none") + more


def only(mapping: Mapping[str, Value], names: Iterable[str]) -> dict[str, Value]:
    """The entries with these names, in their order.

    >>> only({"a": 1, "b": 2}, ["a", "c"])
    {'a': 1}
    """
    return {name: mapping[name] for name in names if name in mapping}


def without(mapping: Mapping[str, Value], names: Iterable[str]) -> dict[str, Value]:
    """The entries with other names.

    >>> without({"a": 1, "b": 2}, ["a", "c"])
    {'b': 2}
    """
    gone = frozenset(names)  # a sequence of ten thousand names would be searched for each entry
    return {name: entry for name, entry in mapping.items() if name not in gone}
