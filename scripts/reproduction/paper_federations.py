"""The paper's figures 7, 8 and 9: the norms of both criteria, and CFL at work."""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from cflower.config import RunConfig
from cflower.learning.models import build_model
from cflower.server_app import criterion_of
from reproduction.experiment import (
    Experiment,
    Results,
    Setting,
    Watch,
    separation_gap,
    simulate,
    summary_of,
)

# ------------------------------------------------------------------------------ figure 7

NORMS = ("round", "mean_norm", "max_norm")
PAIRS = {
    "incongruent": {"shift": "label-swap"},
    "congruent": {"shift": "label-subset", "missing-labels": "5,6,7,8,9;0,1,2,3,4"},
}


def run_norms(setting: Setting) -> Results:
    """Both norms by round of both pairs, of two clients each."""
    keys = {
        "method": "federated",
        "dataset": "digits" if setting.quick else setting.source("mnist"),
        "dataset-size": 200 if setting.quick else 4_000,
        "num-groups": 2,
        "model": "cnn" if setting.quick else "lab-convnet",
        "min-available-nodes": 2,
        "num-server-rounds": 5 if setting.quick else 300,
        "batch-size": 100,
        "learning-rate": 0.03,
        "learning-rate-decay": 1.0,
        "momentum": 0.0,
        "projection-dim": 1,  # no similarity is asked for
    }
    results: Results = {}
    for name, pair in PAIRS.items():
        run = simulate(setting, f"paper-fig7-{name}", keys | pair)
        lines = [line for line in run.lines if line.round <= 20 or line.round % 10 == 0]
        curve = {key: [round(getattr(line, key), 5) for line in lines] for key in NORMS}
        results[name] = curve | {"accuracy": summary_of(run)["metrics"]["accuracy"]}
    return results


# ------------------------------------------------------------------------------ figure 8


class HalfPrecision(nn.Module):
    """`cifar-cnn` computed in bfloat16 from float32 weights: 20 ms a step (AMD EPYC), not 68."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.model = build_model("cifar-cnn", input_shape, num_classes, 0)

    def forward(self, images: Tensor) -> Tensor:
        """Logits in float32."""
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(images.to(memory_format=torch.channels_last))
        return logits.float()  # type: ignore[no-any-return]


def run_permuted(setting: Setting) -> Results:
    """CIFAR-10 with four label permutations: CFL with ``auto``, and FL for as many rounds."""
    keys: dict[str, Any] = {
        "shift": "label-permutation",
        "num-groups": 4,
        "batch-size": 100,
        "local-epochs": 3,
        "learning-rate": 0.02,
        "momentum": 0.9,
        "min-available-nodes": 20,
    }
    if setting.quick:
        keys |= {"dataset": "digits", "min-available-nodes": 8, "num-server-rounds": 2}
    else:
        keys |= {"dataset": setting.source("cifar10"), "dataset-size": 50_000}
        keys |= {"model": f"{__name__}:{HalfPrecision.__name__}", "num-server-rounds": 30}
    return stages(setting, "paper-fig8", keys, "accuracy")


def stages(setting: Setting, name: str, keys: Mapping[str, Any], metric: str) -> Results:
    """What both figures show: a metric, the gap and the norms of every cluster by round."""
    run = simulate(setting, name, keys, Watch(criterion_of(RunConfig.read(keys))))
    federated = simulate(setting, f"{name}-fl", {**keys, "method": "federated"})
    groups = summary_of(run)["groups"]
    lines = []
    for line in run.lines:
        values = [client[metric] for client in line.clients.values()]
        matrix = run.matrix(line)
        gap = None
        if matrix is not None and len(matrix.clients) > 1:
            gap = separation_gap(matrix.values, [groups[name] for name in matrix.clients])
        lines.append(
            {
                "round": line.round,
                "cluster": line.cluster,
                metric: round(mean(values), 4),
                "least": round(min(values), 4),
                "most": round(max(values), 4),
                "gap": None if gap is None else round(gap, 4),
                "mean_norm": round(line.mean_norm, 4),
                "max_norm": round(line.max_norm, 4),
            }
        )
    return {
        "rounds": lines,
        "splits": summary_of(run)["splits"],
        "clusters": summary_of(run)["clusters"],
        "groups": groups,
        "adjusted_rand_index": summary_of(run)["adjusted_rand_index"],
        "metrics": summary_of(run)["metrics"],
        "federated": [
            round(mean(client[metric] for client in line.clients.values()), 4)
            for line in federated.lines
        ],
        "federated_metrics": summary_of(federated)["metrics"],
        "num_examples": [client["num_examples"] for client in summary_of(run)["clients"].values()],
    }


# ------------------------------------------------------------------------------ figure 9

AG_NEWS = "fancyzhx/ag_news"


def run_language(setting: Setting) -> Results:
    """Next-word prediction by topic: CFL, and FL for as many rounds."""
    keys: dict[str, Any] = {"shift": "topic", "num-groups": 4, "model": "lstm"}
    keys |= {"batch-size": 32, "local-epochs": 1, "learning-rate": 0.5}
    if setting.quick:
        keys |= {"dataset": f"text:{chatter(setting.out / 'chatter')}", "num-groups": 2}
        keys |= {"min-available-nodes": 4, "num-server-rounds": 2}
    else:
        folder = AG_NEWS if setting.data is None else setting.source("20newsgroups")
        keys |= {"dataset": f"text:{folder}", "dataset-size": 60_000}
        keys |= {"min-available-nodes": 20, "num-server-rounds": 20}
    return stages(setting, "paper-fig9", keys, "perplexity")


def chatter(folder: Path) -> Path:
    """Small talk of two topics as a data set, for ``--quick``."""
    folder.mkdir(parents=True, exist_ok=True)
    talks = {"sun.day": "the sun is up and the day is warm", "rain.night": "it rains all night"}
    rows = [f"{' '.join([talk] * 40)},{label}" for label, talk in talks.items()]
    (folder / "train.csv").write_text("\n".join(["text,label", *rows, ""]))
    return folder


EXPERIMENTS = (
    Experiment(
        "paper-fig7", "paper, Fig. 7", "norms by round, incongruent and congruent pair", run_norms
    ),
    Experiment(
        "paper-fig8",
        "paper, Fig. 8",
        "CIFAR-10 with permuted labels: accuracy and gaps",
        run_permuted,
    ),
    Experiment(
        "paper-fig9",
        "paper, Fig. 9",
        "language model by topic: perplexity under CFL and FL",
        run_language,
    ),
)
