"""One preparation for the tables of all clients, from each one's description of its columns."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, reduce
from itertools import islice
from math import sqrt
from operator import or_
from statistics import fmean, median
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

import numpy as np
from typing_extensions import TypedDict

from cflower.ordering import LONGEST_TEXT, counted, in_order, line, listed
from cflower.robust.robust_mean import limited
from cflower.tables import ENOUGH_ROWS, LONGEST_CATEGORY, MOST_CATEGORIES, MOST_COLUMNS, Facts

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Description = Mapping[str, Facts]
FAR = 10.0
"""Usual deviations beyond which a client's mean or deviation is left out of the common one."""
MOST_NAMED = 8
NO_INPUTS = {"date": "a date", "empty": "no value"}
AN_ID = "an id: every value differs"


def agree(clients: Mapping[str, Description], *, scaled: bool, named: bool) -> dict[str, Any]:
    """The preparation of the columns that most clients have (`cflower.tables.preparation`).

    ``unused`` has the others with the reason. In columns that the user ``named``, numbers are no
    ids.
    """
    columns = defaultdict[str, list[Facts]](list)
    for description in clients.values():
        for name, one in description.items():
            columns[name].append(one)
    numbers, categories = dict[str, list[float]](), dict[str, list[str]]()
    unused = dict[str, str]()
    for name, facts in columns.items():
        # Clients without a value show no kind, unless nobody has one.
        kinds = Counter(one["kind"] for one in facts)
        kind = max(kinds, key=lambda kind: (kind != "empty", kinds[kind]))
        usual = [one for one in facts if one["kind"] == kind]
        if 2 * len(facts) <= len(clients):
            unused[name] = f"at {len(facts)} of {len(clients)} clients only"
        elif reason := why_no_input(kind, usual, named=named):
            unused[name] = reason
        elif kind == "number":
            numbers[name] = mean_and_deviation(usual)
        else:
            categories[name] = categories_of(usual)
    if not named and not (numbers or categories):
        return agree(clients, scaled=scaled, named=True)  # better an id than nothing
    return {
        "numbers": numbers,
        "categories": categories,
        "scaled": scaled,
        "unused": dict(islice(unused.items(), MOST_CATEGORIES)),
    }


def alone(description: Description | None) -> dict[str, Any]:
    """The preparation that one client's table alone would have, not scaled, with its ids."""
    return agree({"": description or {}}, scaled=False, named=True)


def why_no_input(kind: str, facts: Sequence[Facts], *, named: bool) -> str:
    """Why a column, of one kind everywhere, is no input of a model; empty if it is."""
    if kind in NO_INPUTS:
        return NO_INPUTS[kind]
    if kind == "number":
        return AN_ID if not named and all(one["id"] for one in facts) else ""
    rows = sum(one["rows"] for one in facts)
    if rows >= ENOUGH_ROWS and all(one["different"] == one["rows"] for one in facts):
        return AN_ID
    return why_no_categories(facts)


def why_no_categories(facts: Sequence[Facts]) -> str:
    """Why texts that are no ids are no categories either; empty if they are."""
    clients_with = counts_of_values(facts)
    if len(clients_with) > 1 and all(one["different"] == 1 for one in facts):
        return "the same in every row of a client"
    listings = [one["values"] for one in facts if "values" in one]
    # One client that names many values does not keep the others from having theirs.
    some = filter(None, listings)
    shared = [fmean(clients_with[value] > 1 for value in values) for values in some]
    few = len(clients_with) <= MOST_CATEGORIES or median(shared) >= 0.5
    if shared and few and 2 * len(listings) > len(facts):
        return ""
    return f"texts: {max(len(clients_with), *(one['different'] for one in facts))} different values"


def counts_of_values(facts: Iterable[Facts]) -> Counter[str]:
    return Counter(value for one in facts for value in one.get("values", ()))


def categories_of(facts: Iterable[Facts]) -> list[str]:
    """The values that occur at any client, at most clients if they are many, in natural order."""
    clients_with = counts_of_values(facts)
    often = sorted(clients_with, key=lambda value: (-clients_with[value], value))[:MOST_CATEGORIES]
    return list(in_order(often))


def mean_and_deviation(facts: Sequence[Facts]) -> list[float]:
    """The mean and the standard deviation over all clients' values (Chan, Golub, LeVeque).

    A client counts for three usual ones at most, and one whose own mean or deviation is `FAR` from
    the usual ones, as with another unit, does not count: the others' values would shrink to one.
    Clients at which all values are the same do not show the unit, if others do.
    """
    rows = [(one["count"], one["mean"], one["variance"]) for one in facts if one["count"]]
    if not rows:
        return [0.0, 0.0]
    counts, means, variances = np.array(rows, float).T
    middle = np.median(means)
    squares = variances + (means - middle) ** 2
    usual = sqrt(median(squares) or median([*filter(None, squares)] or [0.0]))
    near = np.maximum(abs(means - middle), np.sqrt(variances)) <= FAR * usual
    weights, means, variances = limited(counts[near]), means[near], variances[near]
    mean = float(np.average(means, weights=weights))
    variance = float(np.average(variances + (means - mean) ** 2, weights=weights))
    return [mean, sqrt(variance)]


def problem_with(description: Description, preparation: Mapping[str, Any]) -> str:
    """Why a client's table does not fit the others'; empty if it does."""
    for kind, words in (("number", "numbers"), ("text", "categories")):
        for name in preparation[words]:
            facts = description.get(name)
            if facts is None:
                return f"its table lacks the column {name!r}, which the others have; add it"
            if facts["kind"] not in (kind, "empty"):
                return (
                    f"its column {name!r} has {facts['kind']}s, and that of the others {words}; "
                    "correct it"
                )
    return ""


def preparation_in_words(class_names: Sequence[str], preparation: Mapping[str, Any]) -> str:
    """The classes, the inputs and the columns that are not used, in one line.

    >>> used = {"numbers": {"age": [60.0, 9.0]}, "categories": {"sex": ["f", "m"]}}
    >>> preparation_in_words(("sick", "well"), used | {"unused": {"visit": "a date"}})
    '2 classes: sick, well; 2 inputs: age, sex (f, m); not used: visit (a date).'
    """
    inputs = columns_in_words(preparation)
    parts = [f"{counted(len(inputs), 'input')}: {listed(inputs, 20, 400)}"]
    if class_names:
        classes = listed(class_names, 20)
        parts.insert(0, f"{counted(len(class_names), 'class', 'classes')}: {classes}")
    if unused := [f"{line(n, 60)} ({why})" for n, why in preparation["unused"].items()]:
        parts.append(f"not used: {listed(unused, 20, 120)}")
    return "; ".join(parts) + "."


def columns_in_words(preparation: Mapping[str, Any]) -> list[str]:
    """The columns that a model sees, each with its values if it has categories."""
    categories = preparation["categories"].items()
    ones = [f"{line(name, 60)} ({listed(values, MOST_NAMED)})" for name, values in categories]
    return [*(line(name, 60) for name in preparation["numbers"]), *ones]


def doubts(class_names: Sequence[str], holding: Mapping[str, Iterable[str]]) -> list[str]:
    """Sentences on classes that may be one class in several spellings, or that some clients lack.

    ``holding`` are the classes of each client, where they are known.

    >>> doubts(("SICK", "sick"), {})
    ["'SICK' and 'sick' are different classes here: if they are one, spell it alike everywhere."]
    """
    alike = defaultdict[str, list[str]](list)
    for name in class_names:
        alike[" ".join(name.split()).casefold()].append(name)
    sentences = [
        f"{' and '.join(repr(line(name, 60)) for name in names)} are different classes here: "
        "if they are one, spell it alike everywhere."
        for names in alike.values()
        if len(names) > 1
    ]
    at = {name: [client for client, own in holding.items() if name in own] for name in class_names}
    some = {name: clients for name, clients in at.items() if 0 < len(clients) < len(holding)}
    if some:
        places = [f"{line(name, 60)} ({listed(clients, 3)})" for name, clients in some.items()]
        sentences.append(f"Classes at some clients only: {listed(places, MOST_NAMED, 200)}.")
    return sentences


@cache
def schema() -> "TypeAdapter[dict[str, Facts]]":
    """The form of a description; made, and Pydantic loaded, when it is needed."""
    from pydantic import AfterValidator, Field, TypeAdapter

    def printable(text: str) -> str:
        if not text.isprintable():
            raise ValueError("expected printable text")
        return text

    finite = Annotated[float, Field(allow_inf_nan=False, ge=-1e100, le=1e100)]
    whole = Annotated[int, Field(ge=0, le=10**12)]
    text = Annotated[str, AfterValidator(printable), Field(max_length=LONGEST_CATEGORY)]
    name = Annotated[str, AfterValidator(printable), Field(max_length=LONGEST_TEXT)]
    few = Annotated[list[text], Field(max_length=MOST_CATEGORIES)]
    variance = Annotated[finite, Field(ge=0)]
    facts: dict[str, dict[str, Any]] = {
        "number": {"count": whole, "mean": finite, "variance": variance, "id": bool},
        "text": {"rows": whole, "different": whole, "values": NotRequired[few]},
        "date": {},
        "empty": {},
    }
    kinds: Any = [TypedDict(kind, {"kind": Literal[kind], **of}) for kind, of in facts.items()]  # type: ignore
    column: Any = reduce(or_, kinds)
    columns: Any = dict[name, Annotated[column, Field(discriminator="kind")]]
    return TypeAdapter(Annotated[columns, Field(max_length=MOST_COLUMNS)])


def read(text: str) -> Description | None:
    try:
        return schema().validate_json(text)
    except ValueError:  # Pydantic's errors are of this kind
        return None


def input_names(preparation: Mapping[str, Any]) -> list[str]:
    """The names of the inputs in their order.

    >>> input_names({"numbers": {"age": [50, 10]}, "categories": {"sex": ["f", "m"]}})
    ['age', 'sex = f', 'sex = m']
    """
    categories = preparation["categories"].items()
    ones = [f"{name} = {value}" for name, values in categories for value in values]
    return [*preparation["numbers"], *ones]


def as_text(preparation: Mapping[str, Any]) -> str:
    return json.dumps(preparation, separators=(",", ":"))
