"""Text as examples of what comes next: the paper's language model, section VI-C.

Posts or articles become windows of some words or characters; the label of a window is the same
tokens one place further on. With shift ``topic`` a document's label says its topic: up to the
first dot, so that the newsgroups ``comp.graphics`` and ``comp.windows.x`` are one.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cflower.data.columns import Roles, Table, label_column, labels_of, listed
from cflower.data.stored import Stored
from cflower.data.topics import TOPIC
from cflower.data.values import values_of
from cflower.errors import DataError


class Tokens(NamedTuple):
    """What a text is made of."""

    cut: Callable[[str], Sequence[str]]
    vocabulary: int
    """Tokens that are told apart, the most frequent ones; all others are `UNKNOWN`, token 0."""
    length: int
    """Tokens of a window."""


TOKENS = {"words": Tokens(str.split, 2000, 20), "characters": Tokens(list, 200, 64)}
UNKNOWN = "<unk>"


def windows(documents: Table, roles: Roles, vocabulary: tuple[str, ...] = ()) -> Stored:
    """Windows of text, of no two documents at once.

    Parameters
    ----------
    documents : Table
        With a column ``text``.
    roles : Roles
        What the texts are made of, and what else is told of a document.
    vocabulary : tuple of str
        The tokens of an earlier call (its ``class_names``), if they are to be numbered alike.

    Returns
    -------
    Stored
        Inputs are the numbers of the tokens, as floats, labels the same, one token on; where
        somebody asks for it, it also tells the ``topic``.

    Raises
    ------
    DataError
        If there is no column of text, or no document is longer than a window.
    """
    source, kind = documents.name, roles.tokens or "words"
    tokens = TOKENS[kind]
    if roles.group:
        documents.find(roles.group, "group-column")
    if "text" not in documents.columns:
        raise DataError(
            f"{source} has no column 'text', only {listed(documents.columns)}: name it so, "
            "or use the data without 'text:'."
        )
    texts = values_of(documents.columns["text"])
    if any(not isinstance(text, str) for text in texts):
        raise DataError(f"{source} has rows without text in its column 'text': remove them.")
    pieces = [tokens.cut(text) for text in texts]
    names = vocabulary or most_frequent(pieces, tokens.vocabulary)
    number = {name: place for place, name in enumerate(names)}
    cut: list[NDArray[np.int64]] = []
    origin: list[int] = []
    for place, document in enumerate(pieces):
        numbered = np.array([number.get(token, 0) for token in document], np.int64)
        count = (len(numbered) - 1) // tokens.length
        cut += [numbered[i * tokens.length : (i + 1) * tokens.length + 1] for i in range(count)]
        origin += [place] * count
    if not cut:
        raise DataError(
            f"{source} has no text of more than {tokens.length} {kind}: use longer texts."
        )
    told = {
        name: values_of(documents.columns[name]) for name in roles.told if name in documents.columns
    }
    if roles.topic:
        told[TOPIC] = topics(documents, roles)
    kept = np.stack(cut)  # shape: (n, length + 1)
    return Stored(
        source,
        kept[:, :-1].astype(np.float32),
        kept[:, 1:],
        names,
        np.arange(len(kept)),
        {name: values[origin] for name, values in told.items()},
        tuple(documents.columns),
        ("text",),
    )


def most_frequent(documents: Sequence[Sequence[str]], most: int) -> tuple[str, ...]:
    """`UNKNOWN`, and the most frequent tokens after it.

    >>> most_frequent([["b", "a"], ["b", "c"]], 3)
    ('<unk>', 'b', 'a')
    """
    counts = Counter(token for document in documents for token in document)
    frequent = sorted(counts, key=lambda token: (-counts[token], token))[: most - 1]
    return (UNKNOWN, *(token for token in frequent if token != UNKNOWN))


def topics(documents: Table, roles: Roles) -> NDArray[np.object_]:
    """What the label of every document says, up to the first dot."""
    labels, names = labels_of(documents, label_column(documents, roles))
    return np.array([names[place].partition(".")[0] for place in labels], dtype=object)
