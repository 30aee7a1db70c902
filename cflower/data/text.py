"""Text as examples of next-word prediction: the paper's language model, section VI-C.

Posts or articles with a label become windows of `LENGTH` words; the label of a window is the
same words one place further on. What the document's label says is its topic: up to the first
dot, so that the newsgroups ``comp.graphics`` and ``comp.windows.x`` are one.
"""

from collections import Counter

import datasets
import numpy as np
from numpy.typing import NDArray

from cflower.data.columns import label_column
from cflower.data.layouts import Choose
from cflower.data.topics import TOPIC
from cflower.errors import DataError

VOCABULARY = 500
"""Words that are told apart, the most frequent ones; all others are `UNKNOWN`, word 0."""
LENGTH = 20
"""Words of a window."""
UNKNOWN = "<unk>"


def windows(documents: datasets.Dataset, source: str, choose: Choose) -> datasets.Dataset:
    """Windows of text, of no two documents at once.

    Parameters
    ----------
    documents : datasets.Dataset
        With a column ``text`` and a ClassLabel.
    source : str
        Its name, for errors.
    choose : callable
        Which windows to keep.

    Returns
    -------
    datasets.Dataset
        Columns ``x`` (numbers of the words, as floats), ``label`` (the same, one word on) and
        ``topic``.

    Raises
    ------
    DataError
        If there is no column of text, or no document is longer than a window.
    """
    if "text" not in documents.column_names:
        raise DataError(
            f"{source} has no column 'text', only {', '.join(documents.column_names)}: name it so, "
            "or use the data without 'text:'."
        )
    words = [text.split() for text in documents["text"]]
    counts = Counter(word for document in words for word in document)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - 1]
    names = [UNKNOWN, *(word for word in frequent if word != UNKNOWN)]
    number = {name: place for place, name in enumerate(names)}
    topics = topics_of(documents, source)
    cut: list[NDArray[np.int64]] = []
    of_topic: list[str] = []
    for document, topic in zip(words, topics, strict=True):
        told = np.array([number.get(word, 0) for word in document], np.int64)
        count = (len(told) - 1) // LENGTH
        cut += [told[i * LENGTH : (i + 1) * LENGTH + 1] for i in range(count)]
        of_topic += [topic] * count
    if not cut:
        raise DataError(f"{source} has no text of more than {LENGTH} words: use longer texts.")
    chosen = choose(len(cut))
    kept = np.stack([cut[i] for i in chosen])  # shape: (n, LENGTH + 1)
    features = datasets.Features(
        x=datasets.List(datasets.Value("float32")),
        label=datasets.List(datasets.ClassLabel(names=names)),
        topic=datasets.Value("string"),
    )
    columns = {
        "x": kept[:, :-1].astype(np.float32),
        "label": kept[:, 1:],
        TOPIC: [of_topic[i] for i in chosen],
    }
    return datasets.Dataset.from_dict(columns, features=features)


def topics_of(documents: datasets.Dataset, source: str) -> list[str]:
    """What each document is about: its label, up to the first dot."""
    column = label_column(documents, source)
    names = documents.features[column].names
    return [names[label].partition(".")[0] for label in documents[column]]
