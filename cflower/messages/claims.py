"""What clients tell of themselves: of the right kind, of bounded length, fit to be shown.

Everything that a client says in words or facts passes here before a log, a file or another
client's run sees it. Numbers of its replies are checked in `cflower.messages.replies`.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple
from unicodedata import category

from flwr.app import ConfigRecord, RecordDict

LONGEST_NAME = 200
LONGEST_TEXT = 500
MOST_FACTS = 50
MOST_ITEMS = 100_000
"""Of a list, such as the names of classes, and bytes of a preview."""
MOST_CLIENTS = 10**6
UNUSABLE_NAMES = frozenset({"", "__metadata__"})
"""The second is safetensors' own key in the files that name clients."""


class Facts(NamedTuple):
    """What a client told, as far as it can be used."""

    told: dict[str, Any]
    problems: tuple[str, ...] = ()
    """One sentence without its end for each fact that was left out."""


def line(text: object, most: int = LONGEST_TEXT) -> str:
    r"""A text from outside as one line of printable characters.

    >>> line("\x1b]0;me\x07 two\nlines"), line("a" * 600)[-20:]
    (' ]0;me  two lines', '... (600 characters)')
    """
    text = str(text)
    if len(text) <= most and text.isprintable():
        return text
    start = text[: most + 1]
    shown = "".join(c if c.isprintable() or category(c) == "Zs" else " " for c in start)
    return shown if len(text) <= most else f"{shown[:most]}... ({len(text)} characters)"


def listed(names: Collection[str], most: int = 12) -> str:
    """The first of some names from outside, and how many more there are.

    >>> listed(["a", "b"]), listed([str(i) for i in range(20)], 2)
    ('a, b', '0, 1 and 18 more')
    """
    shown = ", ".join(line(name, 60) for name in list(names)[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def is_name(value: Any) -> bool:
    """Whether a client or a metric may be called this, in files, logs and tables."""
    short = isinstance(value, str) and len(value) <= LONGEST_NAME
    return short and value.isprintable() and value not in UNUSABLE_NAMES


def is_whole(value: Any, least: int = 0, most: int = 2**53) -> bool:
    """Whether a value is a whole number in a range; ``True`` is none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_list(value: Any, of: Callable[[Any], bool], most: int = MOST_ITEMS) -> bool:
    """Whether a value is a list, not too long, of such items."""
    return isinstance(value, list | tuple) and len(value) <= most and all(map(of, value))


def is_short(value: Any) -> bool:
    """What a fact that only an app of one's own knows may be."""
    if isinstance(value, str | bytes):
        return len(value) <= MOST_ITEMS
    return isinstance(value, bool | int | float) or is_list(
        value, lambda item: isinstance(item, bool | int | float) or is_short_text(item)
    )


def is_short_text(value: Any) -> bool:
    """Whether a value is a text that fits on a line."""
    return isinstance(value, str) and len(value) <= LONGEST_TEXT


KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "client-id": (
        lambda value: is_name(value) or is_whole(value),
        f"a printable name of 1 to {LONGEST_NAME} characters, other than __metadata__",
    ),
    "problem": (lambda value: isinstance(value, str), "a text"),
    "num-partitions": (lambda value: is_whole(value, 1, MOST_CLIENTS), "a number of clients"),
    "num-examples": (is_whole, "a whole number"),
    "input-shape": (lambda value: is_list(value, is_whole, 32), "a list of whole numbers"),
    "class-names": (lambda value: is_list(value, is_short_text), "a list of short texts"),
    "evaluates-way": (lambda value: isinstance(value, bool), "true or false"),
    "tells-entropies": (lambda value: isinstance(value, bool), "true or false"),
    "label-counts": (lambda value: is_list(value, is_whole), "a list of whole numbers"),
    "sample-images": (lambda value: isinstance(value, bytes) and is_short(value), "a few bytes"),
    "sample-shape": (
        lambda value: is_list(value, is_whole, 3) and len(value) == 3,
        "three whole numbers",
    ),
    "mean-examples": (lambda value: isinstance(value, bytes) and is_short(value), "a few bytes"),
    "mean-shape": (
        lambda value: is_list(value, is_whole, 2) and len(value) == 2,
        "two whole numbers",
    ),
    "sample-labels": (lambda value: is_list(value, is_whole, 100), "a list of whole numbers"),
    "permutation": (is_name, "a short text"),
    "group": (lambda value: is_whole(value, -(2**53)) or is_name(value), "a whole number or name"),
    "best-cluster": (is_name, "a cluster"),
}
"""The facts that cflower reads: what each may be, and that in words."""
PREVIEW = (
    "label-counts",
    "sample-images",
    "sample-shape",
    "sample-labels",
    "mean-examples",
    "mean-shape",
)
"""What a client tells of its data for the report; none of it where it does not fit together."""


def facts_in(content: RecordDict, key: str) -> Facts:
    """The facts in a client's answer, checked.

    Parameters
    ----------
    content : RecordDict
    key : str
        Of the ConfigRecord that has them.
    """
    record = content.get(key)
    if not isinstance(record, ConfigRecord):
        return Facts({})
    return checked(dict(record.items()))


def checked(facts: Mapping[str, Any]) -> Facts:
    """The facts that are of the right kind, texts made fit to be shown.

    >>> checked({"client-id": "a", "class-names": 5})
    Facts(told={'client-id': 'a'}, problems=('class-names is 5, not a list of short texts',))
    """
    if len(facts) > MOST_FACTS:
        return Facts({}, (f"it tells {len(facts)} facts, more than {MOST_FACTS}",))
    told, problems = dict[str, Any](), []
    for key, value in facts.items():
        fits, expected = KINDS.get(key, (is_short, "short"))
        if not is_name(key):
            problems.append(f"a fact is called {line(repr(key), 60)}, which is no name")
        elif fits(value):
            told[key] = shown(value)
        else:
            problems.append(f"{key} is {line(repr(value), 60)}, not {expected}")
    if not problems and (problem := preview_problem(told)):
        problems.append(problem)
        told = {key: value for key, value in told.items() if key not in PREVIEW}
    return Facts(told, tuple(problems))


def preview_problem(told: Mapping[str, Any]) -> str:
    """Why what a client tells of its labels and images does not fit together; empty if it does."""
    images, labels = told.get("sample-images"), told.get("sample-labels", ())
    classes, counts = len(told.get("class-names", ())), told.get("label-counts")
    if counts is not None and len(counts) != classes:
        return f"label-counts are {len(counts)} numbers for {classes} classes"
    if any(label >= classes for label in labels):
        return f"sample-labels are beyond its {classes} classes"
    height, width, channels = told.get("sample-shape", (0, 0, 0))
    if images is not None and (
        len(images) != len(labels) * height * width * channels or channels not in (1, 3)
    ):
        return f"sample-images are {len(images)} bytes, not {len(labels)} images of sample-shape"
    means, (channels, points) = told.get("mean-examples"), told.get("mean-shape", (0, 0))
    expected = 2 * classes * channels * points
    if means is not None and (len(means) != expected or not expected or counts is None):
        return f"mean-examples are {len(means)} bytes, not {classes} counted classes of mean-shape"
    return ""


def shown(value: Any) -> Any:
    """A fact with its texts made fit to be shown."""
    if isinstance(value, str):
        return line(value)
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value
