"""What `bench` measures of `cflower simulate` against pfl-research, Apple's simulator.

It comes with `pip install pfl` and is not among the packages that cflower needs.
"""

import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.measure import Figure
from benchmarks.simulator import cases, simulated
from cflower.config import RunConfig
from cflower.data.client_data import load_client_data
from cflower.data.settings import DataSettings
from cflower.learning.models import build_model

ASKED = 0.9


def against_pfl(quick: bool) -> Iterator[Figure]:
    """A round of `cflower simulate`, which evaluates, against one of pfl-research without and with.

    Both train the same model on the same data with equally many steps of at most as many examples.
    pfl takes the examples in their order, cflower in a random one. Its evaluation is before and
    after the training, on the training examples; cflower's before, on the held-out ones.
    """
    if find_spec("pfl") is None:
        print("pfl-research is not installed, to compare with it: pip install pfl", file=sys.stderr)
        return
    for name, keys, _ in cases(quick):
        config, found = RunConfig.read(keys), list[tuple[float, float, float]]()
        for turn in range(2 if quick else 6):
            times = simulated(keys), of_pfl(config, False), of_pfl(config, True)
            if turn:  # the first one decodes the data and does not count
                found.append(times)
        ours, without, evaluated = zip(*found, strict=True)
        for other, times in (("pfl", without), ("pfl with its evaluation", evaluated)):
            yield Figure.of_times(f"a round, mlp, {name}", other, ours, times, ASKED)


class PflModel(nn.Module):
    """A model with the two methods that pfl calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, inputs: Any, labels: Any, eval: bool = False) -> Tensor:
        """The mean loss of a batch."""
        self.train(not eval)
        return cross_entropy(self.model(torch.as_tensor(inputs)), torch.as_tensor(labels).long())

    @torch.no_grad()
    def metrics(self, inputs: Any, labels: Any) -> dict[str, Any]:
        """The summed loss and the number of right predictions."""
        from pfl.metrics import Weighted

        self.eval()
        logits, right = self.model(torch.as_tensor(inputs)), torch.as_tensor(labels).long()
        loss = cross_entropy(logits, right, reduction="sum").item()
        hits = (logits.argmax(1) == right).sum().item()
        return {"loss": Weighted(loss, len(right)), "accuracy": Weighted(hits, len(right))}


def of_pfl(config: RunConfig, evaluates: bool) -> float:
    """CPU seconds of a round of pfl's federated averaging: the median without the first."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    clients, settings = config.min_available_nodes, config.part(DataSettings)
    parts = [load_client_data(settings, i, clients, None).train for i in range(clients)]
    users = [Dataset((part.inputs.copy(), part.labels.copy())) for part in parts]
    data = FederatedDataset(users.__getitem__, get_user_sampler("random", list(range(clients))))
    net, ends = PflModel(build_model(config.model, *parts[0].sizes, seed=0)), list[float]()

    def optimizer(weights: Any, lr: float = config.learning_rate) -> torch.optim.Optimizer:
        return torch.optim.SGD(weights, lr, momentum=config.momentum)

    class Clock(TrainingProcessCallback):  # type: ignore[misc]  # untyped
        def after_central_iteration(self, *args: Any, **named: Any) -> tuple[bool, Any]:
            ends.append(time.process_time())
            return False, Metrics()

    num_rounds, cohort = config.num_server_rounds, round(config.fraction_train * clients)
    FederatedAveraging().run(
        NNAlgorithmParams(num_rounds, 1 if evaluates else 10**6, cohort, None),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(
            net,
            local_optimizer_create=optimizer,
            central_optimizer=torch.optim.SGD(net.parameters(), 1.0),
        ),
        NNTrainHyperParams(
            local_batch_size=config.batch_size,
            local_num_epochs=config.local_epochs,
            local_learning_rate=config.learning_rate,
        ),
        NNEvalHyperParams(local_batch_size=10**4),
        [Clock()],
        send_metrics_to_platform=False,
    )
    return float(median(np.diff(ends)[1:]))
