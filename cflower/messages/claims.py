"""Checks of what clients report about themselves: type, length, printable text, and equal data.

No text or fact from a client reaches a log, a file or another client without these checks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from flwr.app import ConfigRecord, RecordDict
from typing_extensions import TypedDict

from cflower.messages.client_names import ADAPTS, COMMITMENT, EVALUATE_ONLY, LONGEST_NAME, is_name
from cflower.ordering import LONGEST_TEXT, line, listed, without

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MOST_ITEMS = 100_000
"""Maximum length of a list, such as the names of classes, and of bytes."""

MOST_CHARACTERS = 10**6
"""Maximum length of the description of a table; its reader checks the content."""


class CheckedFacts(NamedTuple):
    """The usable facts that a client reported, and a sentence for each that was left out."""

    facts: dict[str, Any]
    problems: tuple[str, ...] = ()


def name(text: str) -> str:
    """A text that `is_name`; ValueError for any other."""
    if not is_name(text):
        raise ValueError(f"expected a printable name of 1 to {LONGEST_NAME} characters")
    return text


LABEL_COUNTS = "label-counts"
EXAMPLES = {"sample-images": ("sample-labels", "sample-shape"), "mean-examples": ("mean-shape",)}
"""Examples in a preview, with what they cannot be shown without, besides `LABEL_COUNTS`."""
PREVIEW = (LABEL_COUNTS, *EXAMPLES, *chain.from_iterable(EXAMPLES.values()))
"""A client's preview of its data for the report, dropped as a whole if its parts do not fit."""


@cache
def facts_schema() -> "TypeAdapter[dict[str, Any]]":
    """The facts that cflower reads, as a check; made, and Pydantic loaded, when it is needed."""
    from pydantic import AfterValidator, FailFast, Field, TypeAdapter

    named = Annotated[str, AfterValidator(name)]
    text = Annotated[str, AfterValidator(line)]
    whole = Annotated[int, Field(ge=0, le=2**53)]
    wholes = Annotated[list[whole], FailFast(), Field(max_length=MOST_ITEMS)]
    class_name = Annotated[text, Field(max_length=LONGEST_TEXT)]
    some_bytes = Annotated[bytes, Field(min_length=1, max_length=MOST_ITEMS)]
    kinds: Any = {
        "client-id": named | whole,
        "problem": text,
        "num-partitions": Annotated[whole, Field(ge=1, le=10**6)],
        "num-examples": whole,
        "input-shape": Annotated[list[Annotated[whole, Field(ge=1)]], Field(max_length=32)],
        "class-names": Annotated[list[class_name], FailFast(), Field(max_length=MOST_ITEMS)],
        "evaluates-way": bool,
        ADAPTS: bool,
        EVALUATE_ONLY: bool,
        "parts-apart": bool,
        "table": Annotated[str, Field(max_length=MOST_CHARACTERS)],
        "classes-here": Annotated[list[class_name], FailFast(), Field(max_length=MOST_ITEMS)],
        LABEL_COUNTS: wholes,
        "sample-images": some_bytes,
        "sample-shape": Annotated[wholes, Field(min_length=3, max_length=3)],
        "sample-labels": wholes,
        "mean-examples": some_bytes,
        "mean-shape": Annotated[wholes, Field(min_length=2, max_length=2)],
        COMMITMENT: named,
        "group": named | Annotated[int, Field(ge=-(2**53), le=2**53)],
        "best-cluster": named,
    }
    return TypeAdapter(TypedDict("Facts", kinds, total=False))  # type: ignore[operator]


def facts_in(content: RecordDict, key: str) -> CheckedFacts:
    """The checked facts in a client's reply, from its ConfigRecord under ``key``."""
    record = content.get(key)
    return checked(dict(record.items())) if isinstance(record, ConfigRecord) else CheckedFacts({})


def checked(facts: Mapping[str, Any]) -> CheckedFacts:
    """The facts that cflower reads, if they are of the right kind, with printable texts.

    >>> checked({"client-id": "a", "evaluates-way": 1}).problems
    ('evaluates-way is 1: Input should be a valid boolean',)
    """
    from pydantic import ValidationError

    wrong = dict[str, str]()
    try:
        usable = facts_schema().validate_python(facts, strict=True)
    except ValidationError as error:
        wrong = {str(one["loc"][0]): one["msg"] for one in error.errors(include_url=False)}
        usable = facts_schema().validate_python(without(facts, wrong), strict=True)
    problems = [f"{key} is {line(repr(facts[key]), 60)}: {why}" for key, why in wrong.items()]
    if not problems and (problem := preview_problem(usable)):
        problems.append(problem)
        usable = without(usable, PREVIEW)
    return CheckedFacts(usable, tuple(problems))


def preview_problem(facts: Mapping[str, Any]) -> str:
    """Why the parts of a client's preview do not fit together; empty if they do."""
    for key, needed in EXAMPLES.items():
        if missing := sorted({LABEL_COUNTS, *needed} - facts.keys() if key in facts else ()):
            return f"{key} came without {listed(missing)}"
    classes, labels = len(facts.get("class-names", ())), facts.get("sample-labels", ())
    images = len(labels) * prod(facts.get("sample-shape", [0]))
    # Two bytes for each number; the report weights the means by label-counts.
    means = 2 * len(facts.get(LABEL_COUNTS, ())) * prod(facts.get("mean-shape", [0]))
    for key, size, others in (
        (LABEL_COUNTS, classes, "class-names"),
        ("sample-images", images, "sample-labels and sample-shape"),
        ("mean-examples", means, f"{LABEL_COUNTS} and mean-shape"),
    ):
        if key in facts and len(facts[key]) != size:
            return f"{key} has length {len(facts[key])}, not {size} as {others} require"
    if max(labels, default=-1) >= classes:
        return f"sample-labels are beyond its {classes} classes"
    if facts.get("sample-shape", [1])[-1] not in (1, 3):
        return "sample-shape does not end with 1 or 3 channels"
    return ""


class DataSpec(NamedTuple):
    """The shape and classes of a client's examples, as reported in the roll call."""

    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]

    @property
    def num_outputs(self) -> int:
        """Outputs of a model: one for each class, or one number."""
        return len(self.class_names) or 1

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "DataSpec":
        return cls(tuple(facts.get("input-shape", ())), tuple(facts.get("class-names", ())))

    def problem_with(self, facts: Mapping[str, Any]) -> str:
        """Why a client with these facts cannot take part; empty if it can.

        >>> DataSpec((1, 8, 8), ("cat", "dog")).problem_with({"input-shape": [1, 8, 8]})
        'its classes are none, but those of the others are cat, dog; set class-names'
        """
        theirs = DataSpec.of(facts)
        if theirs.class_names != self.class_names:
            mine, others = (set(map(spelled, one.class_names)) for one in (theirs, self))
            if mine and mine <= others and not set(theirs.class_names) <= set(self.class_names):
                return (
                    f"its classes are {listed(theirs.class_names)}, and those of the others "
                    f"{listed(self.class_names)}: they differ in spelling only, so spell them alike"
                )
            return (
                f"its classes are {listed(theirs.class_names)}, but those of the "
                f"others are {listed(self.class_names)}; set class-names"
            )
        if theirs.input_shape != self.input_shape:
            return (
                f"its inputs have shape {theirs.input_shape}, but those of the others have "
                f"{self.input_shape}; bring them to the same size and colours"
            )
        return ""


def spelled(name: str) -> str:
    return " ".join(name.split()).casefold()


def most_common(facts: Iterable[Mapping[str, Any]]) -> DataSpec:
    """The specification of most clients; the first one in a tie."""
    return Counter(map(DataSpec.of, facts)).most_common(1)[0][0]
