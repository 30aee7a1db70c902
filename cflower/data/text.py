"""Text as examples of next-word prediction: the paper's language model, section VI-C.

Posts or articles with a label become windows of `LENGTH` words; the label of a window is the
same words one place further on. What the document's label says is its topic: up to the first
dot, so that the newsgroups ``comp.graphics`` and ``comp.windows.x`` are one.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from cflower.data.columns import Roles, Table, label_column, labels_of, listed
from cflower.data.stored import Stored
from cflower.data.topics import TOPIC
from cflower.data.values import values_of
from cflower.errors import DataError

VOCABULARY = 500
"""Words that are told apart, the most frequent ones; all others are `UNKNOWN`, word 0."""
LENGTH = 20
"""Words of a window."""
UNKNOWN = "<unk>"


def windows(documents: Table, roles: Roles) -> Stored:
    """Windows of text, of no two documents at once.

    Parameters
    ----------
    documents : Table
        With a column ``text`` and labels.
    roles : Roles
        Which columns hold the labels, and what else is told of a document.

    Returns
    -------
    Stored
        Inputs are the numbers of the words, as floats, labels the same, one word on; it also
        tells the ``topic``.

    Raises
    ------
    DataError
        If there is no column of text, or no document is longer than a window.
    """
    source = documents.name
    column = label_column(documents, roles)
    labels, topic_names = labels_of(documents, column)
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
    words = [text.split() for text in texts]
    counts = Counter(word for document in words for word in document)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - 1]
    names = [UNKNOWN, *(word for word in frequent if word != UNKNOWN)]
    number = {name: place for place, name in enumerate(names)}
    # What the label says, up to the first dot.
    topics = [topic_names[place].partition(".")[0] for place in labels]
    cut: list[NDArray[np.int64]] = []
    origin: list[int] = []
    for place, document in enumerate(words):
        numbered = np.array([number.get(word, 0) for word in document], np.int64)
        count = (len(numbered) - 1) // LENGTH
        cut += [numbered[i * LENGTH : (i + 1) * LENGTH + 1] for i in range(count)]
        origin += [place] * count
    if not cut:
        raise DataError(f"{source} has no text of more than {LENGTH} words: use longer texts.")
    told = {
        name: values_of(documents.columns[name]) for name in roles.told if name in documents.columns
    }
    told[TOPIC] = np.array(topics, dtype=object)
    kept = np.stack(cut)  # shape: (n, LENGTH + 1)
    return Stored(
        source,
        kept[:, :-1].astype(np.float32),
        kept[:, 1:],
        tuple(names),
        np.arange(len(kept)),
        {name: values[origin] for name, values in told.items()},
        tuple(documents.columns),
        ("text",),
    )
