"""The run config: every key of `[tool.flwr.app.config]`, typed, checked once, at the edge."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from cflower.algorithm.aggregation import Aggregation, TrimmedMean
from cflower.algorithm.bipartition import Linkage
from cflower.algorithm.constants import MOST
from cflower.algorithm.norm_criterion import NormCriterion
from cflower.algorithm.optimizers import SERVER_OPTIMIZERS, ServerOptimizer
from cflower.algorithm.round import WEIGHTINGS, Weighting
from cflower.algorithm.tree import SELECTIONS, Selection
from cflower.data.settings import DataSettings
from cflower.errors import ConfigError
from cflower.learning.settings import TrainingSettings
from cflower.own_code import names_own_code
from cflower.settings import (
    adapted,
    check_influence,
    choice,
    did_you_mean,
    key_of,
    number,
    require,
    same,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TRACKERS = ("", "tensorboard", "wandb", "mlflow")
LOOPS = ("fedprox", "scaffold", "ditto", "fedper", "fedrep", "fedbn")
"""The methods of `cflower.clients.methods`: another training, and FedAvg on the server."""
METHODS = ("clustered", "federated", "isolated", "ifca", *LOOPS)
CRITERIA = ("auto", "norms")
PRIVACIES = ("none", "permutation")
REGRESSION_METRICS = ("rmse", "mae")
METRICS = ("accuracy", "f1", "auc", "loss", "perplexity", *REGRESSION_METRICS)
"""What the app's own clients measure, perplexity of texts only."""
DATA_KEYS = frozenset(key_of(spec) for spec in fields(DataSettings))
"""With another value of one of these, clients have other examples."""
Part = TypeVar("Part", bound="DataclassInstance")


@dataclass(frozen=True)
class RunConfig(TrainingSettings, DataSettings):
    """One run: the settings of every layer, and those of the run itself.

    Field ``local_epochs`` is the key ``local-epochs``; `pyproject.toml` explains each.
    """

    method: str = choice("clustered", METHODS)
    num_models: int = number(2, least=2)
    num_server_rounds: int = number(30, least=1)
    fraction_train: float = number(1.0, above=0, most=1)
    fraction_evaluate: float = number(0.0, least=0, most=1)
    evaluate_only: str = ""
    min_available_nodes: int = number(10, least=1)
    node_timeout: float = number(60.0, above=0)
    round_timeout: float = number(600.0, above=0)
    round_share: float = number(1.0, above=0, most=1)
    round_seconds: float = number(0.0, least=0)

    class_names: str = ""
    model: str = "cnn"
    device: str = "auto"

    split_criterion: str = choice("auto", CRITERIA, own_code=True)
    clusters: int = number(0, least=0)
    eps1: float = same(NormCriterion, "eps1")
    eps2: float = same(NormCriterion, "eps2")
    gamma_max: float = same(NormCriterion, "gamma_max")
    linkage: Linkage = same(NormCriterion, "linkage")
    min_cluster_size: int = same(NormCriterion, "min_cluster_size")
    heard_share: float = same(NormCriterion, "heard_share")
    similarity_layers: str = "*"
    projection_dim: int = number(16384, least=0)

    server_optimizer: str = choice("fedavg", SERVER_OPTIMIZERS, own_code=True)
    server_learning_rate: float = number(0.0, least=0)
    server_momentum: float = same(ServerOptimizer, "momentum")
    weighting: Weighting = choice("examples", WEIGHTINGS)
    aggregation: str = choice("fedavg", get_args(Aggregation), own_code=True)
    beta: float = same(TrimmedMean, "beta")
    max_influence: float = number(MOST, least=0)
    exclude_after: int = number(5, least=0)
    trial_rounds: int = number(-1, least=-1)
    moving: bool = True
    personal: bool = True

    metric: str = choice("accuracy", METRICS)
    selection: Selection = choice("leaf", SELECTIONS)

    privacy: str = choice("none", PRIVACIES)
    seed_file: str = ""

    output_dir: str = "~/cflower-runs"
    run_name: str = ""
    checkpoint_interval: int = number(0, least=0)
    resume: str = ""
    tracker: str = choice("", TRACKERS)
    baselines: bool = False

    def __post_init__(self) -> None:
        DataSettings.__post_init__(self)
        require(
            not self.baselines or self.method == "clustered",
            f"Got baselines=true with method={self.method!r}, which is itself a baseline: "
            "leave one of them out.",
        )
        require(
            self.method not in (*LOOPS, "ifca") or (self.privacy == "none" and not self.resume),
            f"Got method={self.method!r} with resume or privacy='permutation', but the clients or "
            "the server have models that no run folder or no client has: leave these out.",
        )
        check_influence("max-influence", self.max_influence)
        require(
            self.clusters == 0 or (self.clusters > 1 and self.split_criterion == "auto"),
            f"Got clusters={self.clusters} with split-criterion={self.split_criterion!r}: set "
            "clusters=0, or 2 or more with split-criterion='auto'.",
        )
        require(
            self.privacy == "none" or self.similarity_layers == "*",
            f"Got similarity-layers={self.similarity_layers!r}, but with privacy='permutation' "
            'the server cannot distinguish layers: leave it "*".',
        )
        require(
            self.privacy == "permutation" or not self.seed_file,
            f"Got seed-file={self.seed_file!r}, which has no effect with privacy="
            f"{self.privacy!r}: set privacy='permutation' or leave it empty.",
        )
        require(
            (self.model == "lstm") is self.is_text or names_own_code(self.model),
            f"Got model={self.model!r} with dataset={self.dataset!r}, but only model='lstm' "
            "reads text, and it needs dataset='text:FOLDER' or 'text:NAME'.",
        )
        require(
            self.metric != "perplexity" or self.is_text,
            f"Got metric='perplexity' with dataset={self.dataset!r}, but clients measure it of "
            "texts only: set metric='accuracy' or 'loss'.",
        )
        self._check_task()
        require(
            re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device) is not None,
            f"Got device={self.device!r}, but expected 'auto', 'cpu', 'cuda', 'mps' or, "
            "for the second GPU, 'cuda:1'.",
        )
        different = {name for name in self.classes if name}
        require(
            not self.class_names or 1 < len(different) == len(self.classes),
            f"Got class-names={self.class_names!r}, but expected at least two different names "
            'separated by commas, such as "cat,dog".',
        )

    def _check_task(self) -> None:
        require(
            self.is_regression or self.metric not in REGRESSION_METRICS,
            f"Got metric={self.metric!r} with task={self.task!r}: set task='regression' to predict "
            "numbers, or metric='accuracy' or 'loss'.",
        )
        wrong = {
            "metric": self.metric not in (*REGRESSION_METRICS, "accuracy"),
            "class-names": bool(self.class_names),
            "selection": self.selection != "leaf",
        }
        for key in filter(wrong.get, wrong):
            require(
                not self.is_regression,
                f"Got {key}={getattr(self, key.replace('-', '_'))!r} with task='regression', "
                "which predicts numbers and has no classes: leave it out.",
            )

    @property
    def leading_metric(self) -> str:
        """The metric that leads: the error where numbers are predicted and none is named."""
        return "rmse" if self.is_regression and self.metric == "accuracy" else self.metric

    @property
    def decides(self) -> bool:
        """Whether anything is decided by held-out examples: then some of them are for that only.

        It does not depend on ``method``, so that baselines have the same parts.
        """
        judged = self.split_criterion != "norms" and (self.trial_rounds != 0 or self.personal)
        return judged or self.trial_rounds > 0 or self.selection != "leaf"

    @property
    def classes(self) -> tuple[str, ...]:
        names = self.class_names.split(",") if self.class_names else ()
        return tuple(name.strip() for name in names)

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "RunConfig":
        """The run config of kebab-case keys, such as Flower's ``context.run_config``."""
        known = {key_of(spec): spec for spec in fields(cls)}
        for key in values:
            if key not in known:
                hint = did_you_mean(key, known) or ": `cflower keys` lists them."
                raise ConfigError(f"Unknown run-config key {key!r}{hint}")
        return cls(**{known[k].name: adapted(known[k], v, k) for k, v in values.items()})

    def as_keys(self) -> dict[str, Any]:
        return {key_of(spec): getattr(self, spec.name) for spec in fields(self)}

    def part(self, kind: type[Part]) -> Part:
        """The fields that ``kind`` also has, as a ``kind``, such as `TrainingSettings`."""
        part: Part = part_of(self, kind)
        return part

    @property
    def output_path(self) -> Path:
        return Path(self.output_dir).expanduser()


@lru_cache(maxsize=16)  # ten thousand clients of a simulation ask for the same one
def part_of(config: RunConfig, kind: type[Part]) -> Part:
    values = {spec.name: getattr(config, spec.name) for spec in fields(kind)}
    if "decide_fraction" in values and not config.decides:
        values["decide_fraction"] = 0.0
    return kind(**values)


def read_overrides(config: Sequence[str], option: str = "-c") -> dict[str, Any]:
    """The values of ``-c``, or another option, in Flower's own syntax.

    >>> read_overrides(["seed=3 model='mlp'"])
    {'seed': 3, 'model': 'mlp'}
    """
    import click
    from flwr.common.config import parse_config_args

    files = [text for text in config if text.endswith(".toml") and "=" not in text]
    if files and len(config) > 1:
        raise ConfigError(f"Got {option} {files[0]} with others: a file has to be the only one.")
    for text in () if files else config:
        check_override(text, option)
    try:
        return dict(parse_config_args(list(config)))
    except FileNotFoundError:
        raise ConfigError(f"There is no file {config[0]!r}.") from None
    except (click.ClickException, ValueError, OSError) as error:
        message = error.message if isinstance(error, click.ClickException) else str(error)
        raise ConfigError(f"Cannot read {option} {' '.join(config)!r}: {message}") from None


def check_override(text: str, option: str) -> None:
    """Raise a ConfigError for a text that Flower would ignore or refuse without naming the key."""
    pair = r"""(\S+?)=('[^']*'|"[^"]*"|\S+)"""
    rest = re.sub(pair, "", text).strip()
    if rest:
        raise ConfigError(
            f"Cannot read {rest!r} in {option} {text!r}: expected key=value, without spaces "
            "around the equals sign, and texts in quotes."
        )
    for key, value in re.findall(pair, text):
        try:
            tomllib.loads(f"{key} = {value}")
        except tomllib.TOMLDecodeError:
            text_value = value.strip("\"'")
            what, right = "put texts in quotes", f"'{text_value}'"
            if value in ("True", "False"):
                what, right = "write it in lower case", value.lower()
            raise ConfigError(f"Cannot read {key}={value}: {what}: {key}={right}.") from None
