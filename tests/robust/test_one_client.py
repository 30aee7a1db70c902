"""Whatever one client of twenty sends, whenever: the others are as good as without it."""

from dataclasses import dataclass, field
from functools import partial
from statistics import mean

import numpy as np
import pytest
from flwr.app import Array

from cflower import server_app, simulate
from cflower.client_app import app as honest
from cflower.config import RunConfig

CLIENTS = 20
OWN = "small_models"
TWO_GROUPS = {"shift": "label-permutation", "num-groups": 2, "personal": False}
TENTH = {"fraction-train": 0.1, "num-server-rounds": 60}


@dataclass
class Federation:
    """A ClientApp in which one client spoils what it sends, by the model that it got."""

    spoil: object
    hostile: int | None = None
    """None: whoever trains first, and only then."""
    asked: list = field(default_factory=list)

    def __call__(self, message, context):
        reply, client = honest(message, context), context.node_config["partition-id"]
        if message.metadata.message_type != "train" or reply.has_error():
            return reply
        self.asked.append(client)
        if client == self.hostile or (self.hostile is None and len(self.asked) == 1):
            ((name, got),) = message.content.array_records.items()
            sent = reply.content[name]
            for key, array in sent.items():
                spoilt = self.spoil(key, got[key].numpy(), array.numpy())
                sent[key] = Array(np.asarray(spoilt, array.numpy().dtype))
        return reply


def variance(key, got, sent):
    return got + 1e30 if "running_var" in key else sent


def index(key, got, sent):
    return got + 2000 if key.endswith("places") else sent


def backwards(key, got, sent):
    return got - 1e6 * (sent - got)


def accuracy(behave, folder, **keys):
    """Mean accuracy of the honest clients."""
    settings = {"num-server-rounds": 25, "model": "mlp", "min-available-nodes": CLIENTS}
    config = RunConfig.read({**settings, **TWO_GROUPS, **keys, "output-dir": str(folder)})
    server = partial(server_app.run, say=lambda text: None)
    found = simulate(behave, CLIENTS, server_app=server, run_config=config.as_keys())
    hostile = behave.asked[0] if behave.hostile is None else behave.hostile
    return mean(
        found["clients"][f"partition-{i}"]["accuracy"] for i in range(CLIENTS) if i != hostile
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [77, 78])
@pytest.mark.parametrize(
    ("spoil", "hostile", "keys"),
    [
        (variance, 19, {"model": f"{OWN}:frozen_batchnorm"}),
        (index, 19, {"model": f"{OWN}:indexed"}),
        (backwards, None, TENTH),
        (variance, 19, {"model": f"{OWN}:batchnorm", **TENTH}),
    ],
    ids=["unchanged statistics", "index", "first round", "alone in its round"],
)
def test_one_client_costs_the_others_next_to_nothing(spoil, hostile, keys, seed, tmp_path):
    def run(what):
        return accuracy(Federation(what, hostile), tmp_path, seed=seed, **keys)

    # 171 reported examples: three of them are 1.8 points.
    assert run(spoil) > run(lambda key, got, sent: sent) - 0.018
