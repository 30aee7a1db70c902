"""Text as examples of what comes next: the paper's language model, section VI-C.

Posts or articles become windows of some words or characters; the label of a window is the same
tokens one place further on. With shift ``topic`` the topic of a document is its label up to the
first dot, so that the newsgroups ``comp.graphics`` and ``comp.windows.x`` are one.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from cflower.data.columns import Table, label_column, labels_of
from cflower.data.settings import TOPIC, DataSettings
from cflower.data.stored import Stored, metadata_of
from cflower.ordering import listed
from cflower.settings import require_data
from cflower.tables.values import values_of


class Tokens(NamedTuple):
    """The units that a text is cut into."""

    cut: Callable[[str], Sequence[str]]
    vocabulary: int
    """Size of the vocabulary: the most frequent tokens; all others are `UNKNOWN`, token 0."""
    length: int
    """Tokens per window."""


TOKENS = {"words": Tokens(str.split, 2000, 20), "characters": Tokens(list, 200, 64)}
UNKNOWN = "<unk>"


def windows(documents: Table, settings: DataSettings, vocabulary: tuple[str, ...] = ()) -> Stored:
    """Windows of text, each within one document, as the numbers of their tokens.

    The documents have a column ``text``; labels are the inputs, one token on. A vocabulary (the
    ``class_names`` of an earlier call) numbers the tokens as there.
    """
    cut, most, length = TOKENS[settings.tokens]
    metadata = metadata_of(documents, settings)
    require_data(
        "text" in documents.columns,
        f"{documents.name} has no column 'text', only {listed(documents.columns)}: name it so, "
        "or use the data without 'text:'.",
    )
    texts = values_of(documents.columns["text"])
    require_data(
        all(isinstance(text, str) for text in texts),
        f"{documents.name} has rows without text in its column 'text': remove them.",
    )
    pieces = list(map(cut, texts))
    names = vocabulary or most_frequent(pieces, most)
    number = {name: place for place, name in enumerate(names)}
    parts: list[NDArray[np.int64]] = []
    origin: list[int] = []
    for place, document in enumerate(pieces):
        if len(document) > length:
            tokens = np.array([number.get(token, 0) for token in document], np.int64)
            parts.append(sliding_window_view(tokens, length + 1)[::length])
            origin += [place] * len(parts[-1])
    require_data(
        len(parts) > 0,
        f"{documents.name} has no text of more than {length} {settings.tokens}: use longer texts.",
    )
    cut_up = np.concatenate(parts)  # shape: (n, length + 1)
    if settings.shift == "topic":
        # The label of every document up to the first dot.
        labels, topics = labels_of(documents, label_column(documents, settings))
        metadata[TOPIC] = np.array([name.partition(".")[0] for name in topics], object)[labels]
    return Stored(
        documents.name,
        cut_up[:, :-1].astype(np.float32),
        cut_up[:, 1:],
        names,
        np.arange(len(cut_up)),
        {name: values[origin] for name, values in metadata.items()},
        tuple(documents.columns),
        ("text",),
    )


def most_frequent(documents: Sequence[Sequence[str]], most: int) -> tuple[str, ...]:
    """`UNKNOWN`, and the most frequent tokens after it.

    >>> most_frequent([["b", "a"], ["b", "c"]], 3)
    ('<unk>', 'b', 'a')
    """
    counts = Counter(chain.from_iterable(documents))
    del counts[UNKNOWN]
    frequent = sorted(counts, key=lambda token: (-counts[token], token))
    return (UNKNOWN, *frequent[: most - 1])
