"""The figures of all clients' held-out examples together, in words and as a table."""

from cflower.ordering import line
from cflower.pooled import POOLED, Pooled, Share
from cflower.runs.records import Summary

INTERVALS = "95% intervals, as if the examples were drawn at random"
SHOWN = {"auc": "AUC", "f1": "macro F1", "accuracy": "accuracy"}


def is_shown(summary: Summary) -> bool:
    """Whether they are shown without being asked for: of two classes, or if one of them leads."""
    line = summary.pooled.get("own")
    return line is not None and (len(line.classes) == 2 or summary.metric.name in POOLED)


def sentences(summary: Summary) -> list[str]:
    """The figures of the models that serve the clients, and of the common one if it is another."""
    own, common = summary.pooled.get("own"), summary.pooled.get("fl")
    lines = [in_one_sentence(own)] if own else []
    return (
        [*lines, f"The common model: {in_one_sentence(common)}"]
        if common and summary.lasting
        else lines
    )


def in_one_sentence(pooled: Pooled) -> str:
    """AUC, macro F1 and accuracy with their intervals."""
    figures = {name: getattr(pooled, key) for key, name in SHOWN.items()}
    words = [f"{name} {share_in_words(figure)}" for name, figure in figures.items() if figure]
    return f"All {pooled.examples} held-out examples of {pooled.clients} clients together: " + (
        f"{', '.join(words)} ({INTERVALS})."
    )


def by_class(summary: Summary, pooled: Pooled) -> list[dict[str, str]]:
    """A row for each class, by heading."""
    names = summary.class_names
    names = (
        names if len(names) == len(pooled.classes) else list(map(str, range(len(pooled.classes))))
    )
    return [
        {
            "class": line(name),
            "held out": str(one.examples),
            "clients with it": f"{one.clients} of {pooled.clients}",
            "sensitivity": share_in_words(one.sensitivity),
            "specificity": share_in_words(one.specificity),
            "precision": share_in_words(one.precision),
            "F1": "-" if one.f1 is None else f"{one.f1:.1%}",
        }
        for name, one in zip(names, pooled.classes, strict=True)
    ]


def share_in_words(figure: Share | None) -> str:
    """A share and its interval.

    >>> share_in_words(Share(0.5, [0.25, 0.75]))
    '50.0% (25.0-75.0)'
    """
    if figure is None:
        return "-"
    low, high = figure.interval
    return f"{figure.value:.1%} ({100 * low:.1f}-{100 * high:.1f})"
