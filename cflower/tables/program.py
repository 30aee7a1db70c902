"""The Python file that comes with an exported model of a table, and its words in the card."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from pprint import pformat
from typing import Any

from cflower.tables.agreement import columns_in_words

PROGRAM = """\
{source}

PREPARATION: dict[str, Any] = {preparation}
CLASSES: list[str] = {classes}
LAYERS: list[str] = {layers}
MODEL = TableModel(Path(__file__).with_name({file!r}), PREPARATION, CLASSES, LAYERS)
predict = MODEL.predict

if __name__ == "__main__":
    main(MODEL)
"""
USE = """\
import runpy

import pandas as pd

predict = runpy.run_path({program!r})["predict"]
predict(pd.read_csv("rows.csv"))  # for each row the prediction{and_chances}"""
"""Code that uses a model of a table."""


def program(
    preparation: Mapping[str, Any], classes: Sequence[str], layers: Sequence[str], file: str
) -> str:
    """A Python file that predicts from a DataFrame by a model file in the same folder, without
    cflower.

    ``layers`` are the dense layers of a file of safetensors, none of ONNX.
    """
    used = {key: preparation[key] for key in ("numbers", "categories", "scaled")}
    source = Path(__file__).with_name("preparation.py").read_text(encoding="utf-8")
    return PROGRAM.format(
        source=source,
        preparation=pformat(used, sort_dicts=False, width=100),
        classes=list(classes),
        layers=list(layers),
        file=file,
    )


def use(program_file: str, classes: Sequence[str]) -> str:
    and_chances = ", and the probability of each class" if classes else ""
    return USE.format(program=program_file, and_chances=and_chances)


def in_the_card(preparation: Mapping[str, Any], standardise: str) -> str:
    """The columns that a model expects, by their names, and how their numbers are scaled."""
    scaling = {
        "common": "numbers are scaled by their mean and deviation over all clients, and end at 10 "
        "deviations",
        "client": "each client scales its inputs by their own mean and deviation, which it keeps: "
        "a table from elsewhere has to be scaled by its own",
    }.get(standardise, "numbers are taken as they are")
    names = ", ".join(columns_in_words(preparation))
    return f"{names}; in the units of the clients' tables; {scaling}; a missing number is the mean"
