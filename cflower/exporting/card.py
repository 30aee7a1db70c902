"""The model card: a description of an exported model as Markdown."""

import json
from typing import NamedTuple

from cflower.algorithm.tree import ROOT
from cflower.messages.data_spec import DataSpec
from cflower.ordering import counted, in_order, listed
from cflower.runs.record import RunRecord
from cflower.runs.records import sharing
from cflower.runs.together import as_markdown, cell, figures_of
from cflower.runs.ways import KINDS, Ways
from cflower.tables.program import in_the_card, use

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
    """The exported file."""

    name: str
    file_format: str
    sha256: str
    program: str = ""
    """The Python file that brings a table's preparation."""


ARRAYS = """\
from safetensors.numpy import load_file

arrays = load_file({file!r})  # under the app's own names: {keys}"""
"""Code that loads the arrays of any other app."""


def model_card(
    record: RunRecord, cluster: str, kind: DataSpec | None, file: ModelFile, client: str = ""
) -> str:
    """Markdown about a cluster's model, or about that of a ``client`` with a model of its own.

    ``kind``: shape and classes of the run's examples; None if only the run's own app knows them.
    """
    served = record.summary.clients[client].served if client else None
    members = record.clusters[cluster].members
    properties, loading = own_facts(record, kind, file) if kind else other_facts(record, file)
    facts = {
        "run": f"{record.name}, {progress_of(record)}, seed {record.settings['seed']}",
        "cluster": f"{cluster}, {origin_of(record, cluster)}",
        "members": f"{counted(len(members), 'client')}: {', '.join(members)}",
        **({"own model": OWN_MODEL.format(client=client, share=served.share)} if served else {}),
        **properties,
        "file": f"`{file.name}`, {file.file_format}, SHA-256 `{file.sha256}`",
    }
    config = "\n".join(f"{key} = {json.dumps(value)}" for key, value in record.config.items())
    versions = ", ".join(f"{name} {number}" for name, number in record.begun.versions.items())
    return "\n".join(
        [
            f"# Model of {client}" if client else f"# Model of cluster {cluster}",
            "",
            "Trained with cflower by Clustered Federated Learning (Sattler, Müller, Samek, arXiv "
            "1910.01991): the clients sent weight updates, never their examples.",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {key} | {cell(text)} |" for key, text in facts.items()),
            "",
            "## How good it is",
            "",
            *quality(record, cluster, client),
            "",
            "## How to use it",
            "",
            f"```python\n{loading}\n```",
            "",
            "## How it was trained",
            "",
            f"With {versions}, and this run config:",
            "",
            f"```toml\n{config}\n```",
            "",
        ]
    )


def own_facts(record: RunRecord, kind: DataSpec, file: ModelFile) -> tuple[dict[str, str], str]:
    """Properties of a model of cflower's own app, and code that loads its file."""
    model, shape, classes = record.config["model"], tuple(kind.input_shape), kind.class_names
    listed_classes = ", ".join(f"{number} = {name}" for number, name in enumerate(classes))
    pixels = "; pixels from 0 to 1, (channels, height, width)" if len(shape) == 3 else ""
    table = record.preparation
    columns = {"columns": in_the_card(table, record.config["standardise"])} if table else {}
    properties = columns | {
        "model": f"`{model}` of cflower {record.begun.versions.get('cflower', '?')}",
        "input": f"float32, shape (batch, {', '.join(map(str, shape))}), any batch{pixels}",
        "output": f"logits, shape (batch, {len(classes)}): the largest is the predicted class"
        if classes
        else "the predicted number, shape (batch, 1)",
        "classes": listed_classes or "none",
    }
    loading = LOADING[file.file_format].format(
        model=model,
        input_shape=shape,
        num_classes=kind.num_outputs,
        file=file.name,
        batch=(1, *shape),
    )
    return properties, use(file.program, classes) if file.program else loading


def other_facts(record: RunRecord, file: ModelFile) -> tuple[dict[str, str], str]:
    """Properties of a model of any other app, and code that loads its file."""
    keys = [entry.key for entry in record.layout.entries]
    template = ARRAYS if file.file_format == "safetensors" else LOADING[file.file_format]
    loading = template.format(file=file.name, keys=", ".join(keys), batch="...")
    return {"arrays": ", ".join(f"`{key}`" for key in keys)}, loading


def progress_of(record: RunRecord) -> str:
    rounds = counted(record.rounds, "round")
    return f"finished after {rounds}" if record.finished else f"not finished, {rounds} so far"


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
    summary, is_leaf = record.summary, not record.clusters[cluster].children
    if not record.finished or not (is_leaf or cluster == ROOT):
        return ["The run has no final evaluation of this model."]
    way = "own" if client else "leaf" if is_leaf else "fl"
    ways, members = Ways(summary), record.clusters[cluster].members
    asked = (client,) if client else in_order(members)
    known = [name for name in asked if name in ways[way].values]
    if not known:
        return ["No member answered the final evaluation."]
    over = "its" if len(known) == len(asked) else f"{len(known)} of its {len(asked)}"
    columns = {way: summary.metric.name} | {key: KINDS[key].words for key in summary.measured}
    together = None if client else summary.pooled.get(cluster if is_leaf else "fl")
    counted_ones = as_markdown(summary, together) if together else []
    return [*counted_ones, *figures_of(ways, columns, known, over)]
