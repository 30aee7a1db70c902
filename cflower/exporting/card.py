"""The model card: what a reader of an exported model needs to know, as Markdown."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cflower.algorithm.tree import ROOT
from cflower.messages.data_spec import DataSpec
from cflower.ordering import in_order
from cflower.runs.baselines import BASELINES
from cflower.runs.record import RunRecord, all_clients, counted, weighted
from cflower.runs.run_files import read_json
from cflower.strategy.reports import Metric

LOADING = {
    "safetensors": """\
import torch
from safetensors.torch import load_file
from cflower.learning import build_model

model = build_model({model!r}, {input_shape}, {num_classes}, seed=0)
model.load_state_dict(load_file({file!r}))
logits = model.eval()(torch.zeros({batch}))""",
    "torchscript": """\
import torch

model = torch.jit.load({file!r})
logits = model(torch.zeros({batch}))""",
    "onnx": """\
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession({file!r})
(logits,) = session.run(None, {{"input": np.zeros({batch}, np.float32)}})""",
}
"""How each format is read back."""


class ModelFile(NamedTuple):
    """The exported file."""

    name: str
    file_format: str
    sha256: str


ARRAYS = """\
from safetensors.numpy import load_file

arrays = load_file({file!r})  # under the names that the app gave them: {keys}"""
"""How the arrays of an app that is not cflower's own are read back."""


def model_card(record: RunRecord, cluster: str, kind: DataSpec | None, file: ModelFile) -> str:
    """Markdown about one cluster's model.

    Parameters
    ----------
    record : RunRecord
        The run it is from.
    cluster : str
        Its name, such as ``0.1``.
    kind : DataSpec or None
        What the run's examples look like; None: only the run's own app knows.
    file : ModelFile
        What the card lies beside.
    """
    line = record.clusters[cluster]
    seed = record.settings["seed"]
    looks, loading = looks_of(record, kind, file)
    facts = {
        "run": f"{record.name}, {progress_of(record)}, seed {seed}",
        "cluster": f"{cluster}, {origin_of(record, cluster)}",
        "members": f"{counted(len(line['members']), 'client')}: {', '.join(line['members'])}",
        **looks,
        "file": f"`{file.name}`, {file.file_format}, SHA-256 `{file.sha256}`",
    }
    config = "\n".join(f"{key} = {json.dumps(value)}" for key, value in record.config.items())
    versions = ", ".join(f"{name} {number}" for name, number in record.versions.items())
    return "\n".join(
        [
            f"# Model of cluster {cluster}",
            "",
            "Trained with cflower by Clustered Federated Learning (Sattler, Müller, Samek, arXiv "
            "1910.01991): only weight-updates left the clients, never their examples.",
            "",
            "| | |",
            "| --- | --- |",
            *(f"| {key} | {cell(text)} |" for key, text in facts.items()),
            "",
            "## How good it is",
            "",
            *quality(record, cluster),
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


def looks_of(
    record: RunRecord, kind: DataSpec | None, file: ModelFile
) -> tuple[dict[str, str], str]:
    """What the model is and takes, as far as the run knows; and how the file is read back."""
    template = LOADING[file.file_format]
    if kind is None:
        keys = [key for key, *_ in read_json(record.path, "config.json")["arrays"]]
        if file.file_format == "safetensors":
            template = ARRAYS
        loading = template.format(file=file.name, keys=", ".join(keys), batch="...")
        return {"arrays": ", ".join(f"`{key}`" for key in keys)}, loading
    model, shape, classes = record.config["model"], tuple(kind.input_shape), kind.class_names
    facts = {
        "model": f"`{model}` of cflower {record.versions.get('cflower', '?')}",
        "input": f"float32, shape (batch, {', '.join(map(str, shape))}), any batch"
        + ("; pixels from 0 to 1, (channels, height, width)" if len(shape) == 3 else ""),
        "output": f"logits, shape (batch, {len(classes)}): the largest names the class",
        "classes": ", ".join(f"{number} = {name}" for number, name in enumerate(classes)),
    }
    loading = template.format(
        model=model,
        input_shape=shape,
        num_classes=len(classes),
        file=file.name,
        batch=(1, *shape),
    )
    return facts, loading


def progress_of(record: RunRecord) -> str:
    """How far the run has come."""
    rounds = counted(record.rounds, "round")
    return f"finished after {rounds}" if record.finished else f"not finished, {rounds} so far"


def origin_of(record: RunRecord, cluster: str) -> str:
    """Where a cluster comes from, and whether it was trained to the end."""
    line = record.clusters[cluster]
    text = "the root: one model for all clients"
    if cluster != ROOT:
        text = f"made of {cluster.rpartition('.')[0]} in round {line['born']}"
    if line["children"]:
        parts, split = ", ".join(line["children"]), f"the split in round {line['split_round']}"
        text += (
            f"; it has learned on since {split} into {parts}"
            if line.get("general")
            else f"; the model as it was before {split} into {parts}"
        )
    return text


def quality(record: RunRecord, cluster: str) -> list[str]:
    """The final evaluation of this model, by client."""
    metric, inner = record.metric, bool(record.clusters[cluster]["children"])
    if not record.finished or (inner and cluster != ROOT):
        return ["The run has no final evaluation of this model."]
    key = f"{'fl' if inner else 'leaf'}_{metric.name}"
    clients = all_clients(record.summary)
    members = in_order(record.clusters[cluster]["members"])
    rows = [(n, clients[n]) for n in members if clients.get(n, {}).get(key) is not None]
    if not rows:
        return ["No member answered the final evaluation."]
    baselines = record.summary["baselines"] or {}
    headings = {key: metric.name} | {f"{b}_{metric.name}": BASELINES[b] for b in baselines}
    means = {words: metric.in_words(weighted(k, rows)) for k, words in headings.items()}
    told = [f"{words} {mean}" for words, mean in means.items()]
    return [
        f"Means over its clients: {'; '.join(told)}. Each client judged by held-out examples of "
        "its own, never trained on:",
        "",
        f"| client | held-out examples | {' | '.join(headings.values())} |",
        "| --- | --- |" + " --- |" * len(headings),
        *(row_of(name, client, headings, metric) for name, client in rows),
    ]


def row_of(name: str, client: Mapping[str, Any], keys: Iterable[str], metric: Metric) -> str:
    """One client's line of the table."""
    count = client.get("held_out")
    cells = [cell(name), "-" if count is None else f"{count:g}"]
    return f"| {' | '.join([*cells, *(metric.in_words(client.get(key)) for key in keys)])} |"


def cell(text: str) -> str:
    r"""Text that stays in its cell of a Markdown table.

    >>> cell("a|b")
    'a\\|b'
    """
    return " ".join(text.replace("|", "\\|").split())
