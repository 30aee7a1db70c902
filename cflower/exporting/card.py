"""The model card: a description of an exported model as Markdown."""

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from cflower.algorithm.tree import ROOT
from cflower.newcomers.pytorch_run import SavedRun
from cflower.ordering import counted, in_order, listed, only
from cflower.runs.record import RunRecord
from cflower.runs.records import sharing
from cflower.runs.tables import by_class, in_one_sentence, shown
from cflower.runs.ways import KINDS
from cflower.tables.program import in_the_card, use

CARD = """\
# Model of {title}

Trained with cflower by Clustered Federated Learning (Sattler, Müller, Samek, arXiv 1910.01991): \
the clients sent weight updates, never their examples.

| | |
| --- | --- |
{facts}

## How good it is

{quality}

## How to use it

```python
{loading}
```

## How it was trained

With {versions}, and this run config:

```toml
{config}
```
"""
LOADING = {
    "safetensors": """\
import torch
from safetensors.torch import load_file
from cflower.learning.models import build_model

model = build_model({model!r}, {input_shape}, {num_classes}, seed=0)
model.load_state_dict(load_file({file!r}))
logits = model.eval()(torch.zeros({batch}))""",
    "onnx": """\
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession({file!r})
(logits,) = session.run(None, {{"input": np.zeros({batch}, np.float32)}})""",
}
"""Code that loads a model of cflower's own app, by format."""


OWN_MODEL = "for {client} alone: {share:.0%} of a model trained by itself, else the cluster's"


class ModelFile(NamedTuple):
    name: str
    file_format: str
    content: bytes
    program: Path | None
    """The Python file that brings a table's preparation."""


ARRAYS = """\
from safetensors.numpy import load_file

arrays = load_file({file!r})  # under the app's own names: {keys}"""
"""Code that loads the arrays of any other app."""


def model_card(record: RunRecord, cluster: str, file: ModelFile, client: str = "") -> str:
    """Markdown about a cluster's model, or about that of a ``client`` with a model of its own."""
    members, digest = record.clusters[cluster].members, sha256(file.content).hexdigest()
    of_run = own_facts(record, file) if isinstance(record, SavedRun) else other_facts(record, file)
    properties, loading = of_run
    rounds = counted(record.rounds, "round")
    progress = f"finished after {rounds}" if record.finished else f"not finished, {rounds} so far"
    facts = {
        "run": f"{record.name}, {progress}, seed {record.settings['seed']}",
        "cluster": f"{cluster}, {origin_of(record, cluster)}",
        "members": f"{counted(len(members), 'client')}: {', '.join(members)}",
    }
    if client:
        share = record.summary.clients[client].served.share
        facts["own model"] = OWN_MODEL.format(client=client, share=share)
    facts |= {**properties, "file": f"`{file.name}`, {file.file_format}, SHA-256 `{digest}`"}
    return CARD.format(
        title=client or f"cluster {cluster}",
        facts="\n".join(f"| {key} | {in_cell(text)} |" for key, text in facts.items()),
        quality="\n".join(quality(record, cluster, client)),
        loading=loading,
        versions=", ".join(f"{name} {number}" for name, number in record.begun.versions.items()),
        config="\n".join(f"{key} = {json.dumps(value)}" for key, value in record.config.items()),
    )


def own_facts(record: SavedRun, file: ModelFile) -> tuple[dict[str, str], str]:
    """Properties of a model of cflower's own app, and code that loads its file."""
    model, shape, classes = record.config["model"], record.kind.input_shape, record.kind.class_names
    properties, table = dict[str, str](), record.preparation
    if table:
        properties["columns"] = in_the_card(table, record.config["standardise"])
    pixels = "; pixels from 0 to 1, (channels, height, width)" if len(shape) == 3 else ""
    output = "the predicted number, shape (batch, 1)"
    if classes:
        output = f"logits, shape (batch, {len(classes)}): the largest is the predicted class"
    properties |= {
        "model": f"`{model}` of cflower {record.begun.versions.get('cflower', '?')}",
        "input": f"float32, shape (batch, {', '.join(map(str, shape))}), any batch{pixels}",
        "output": output,
        "classes": ", ".join(f"{i} = {name}" for i, name in enumerate(classes)) or "none",
    }
    if file.program:
        return properties, use(file.program.name, classes)
    values = {"model": model, "input_shape": shape, "num_classes": record.kind.num_outputs}
    return properties, LOADING[file.file_format].format(**values, file=file.name, batch=(1, *shape))


def other_facts(record: RunRecord, file: ModelFile) -> tuple[dict[str, str], str]:
    """Properties of a model of any other app, and code that loads its file."""
    keys = [entry.key for entry in record.layout.entries]
    template = ARRAYS if file.file_format == "safetensors" else LOADING[file.file_format]
    loading = template.format(file=file.name, keys=", ".join(keys), batch="...")
    return {"arrays": ", ".join(f"`{key}`" for key in keys)}, loading


def origin_of(record: RunRecord, cluster: str) -> str:
    """The split that made a cluster, and the state of its model."""
    line = record.clusters[cluster]
    text = "the root: one model for all clients"
    if cluster != ROOT:
        text = f"made of {cluster.rpartition('.')[0]} in round {line.born}"
    if not line.children:
        others = sharing(record.clusters, cluster)
        shared = f"; all layers but the output layer are also those of {listed(others)}"
        return text + shared if others else text
    split = f"the split in round {line.split_round} into {', '.join(line.children)}"
    if line.general:
        return f"{text}; the mean of the models below it since {split}"
    return f"{text}; the model as it was before {split}"


def quality(record: RunRecord, cluster: str, client: str = "") -> list[str]:
    """The final evaluation of this model, by client."""
    summary, ways, line = record.summary, record.ways, record.clusters[cluster]
    if not record.finished or (line.children and cluster != ROOT):
        return ["The run has no final evaluation of this model."]
    way = "own" if client else "fl" if line.children else "leaf"
    asked = (client,) if client else in_order(line.members)
    known = list(only(ways[way].values, asked))
    if not known:
        return ["No member answered the final evaluation."]
    over = "its" if len(known) == len(asked) else f"{len(known)} of its {len(asked)}"
    metric, columns = ways.metric, {way: summary.metric.name}
    columns |= {key: KINDS[key].words for key in summary.measured}
    means = [f"{word} {metric.in_words(ways.mean(key, known))}" for key, word in columns.items()]
    rows = [
        {"client": name, "held-out examples": shown(ways.clients[name].held_out, "g")}
        | {word: metric.in_words(ways[key].values.get(name)) for key, word in columns.items()}
        for name in known
    ]
    together = None if client else summary.pooled.get("fl" if line.children else cluster)
    of_classes = list[str]()
    if together:
        of_classes = [in_one_sentence(together), "", *markdown(by_class(summary, together)), ""]
    sentence = (
        f"Means over {over} clients: {'; '.join(means)}. Each client is evaluated on its own "
        "held-out examples:"
    )
    return [*of_classes, sentence, "", *markdown(rows)]


def markdown(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Rows of texts by heading as the lines of a table."""
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(map(in_cell, row.values()) for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def in_cell(text: str) -> str:
    r"""Text that cannot break out of its cell in a Markdown table.

    >>> in_cell("a|b")
    'a\\|b'
    """
    return " ".join(text.replace("|", "\\|").split())
