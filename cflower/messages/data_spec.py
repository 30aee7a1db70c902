"""The shape and classes that all clients' data must share, so that one model fits them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cflower.ordering import listed


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
