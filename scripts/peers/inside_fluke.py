"""One run of a method of fluke, in an environment that has it: see `of_fluke`."""

import contextlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedamp import FedAMP
from fluke.algorithms.fedper import FedPer
from fluke.algorithms.fedrod import FedROD
from fluke.algorithms.lg_fedavg import LGFedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.nets import EncoderHeadNet
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

METHODS = {"FedROD": FedROD, "FedPer": FedPer, "LG-FedAvg": LGFedAVG, "FedAMP": FedAMP}


def main(place: Path) -> None:
    """Read the clients from a folder, train, and write their models there."""
    keys = json.loads((place / "keys.json").read_text())
    torch.set_num_threads(1)
    FlukeENV().set_seed(keys["seed"])
    FlukeENV().set_device("cpu")
    FlukeENV().set_inmemory(True)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    with np.load(place / "clients.npz") as arrays:
        parts = [(arrays[f"{name} x"], arrays[f"{name} y"]) for name in keys["clients"]]
        initial = torch.tensor(arrays["initial"])
    classes = 1 + max(int(labels.max()) for _, labels in parts)
    features = int(np.prod(parts[0][0].shape[1:]))
    hidden = (len(initial) - classes) // (features + 1 + classes)
    body = nn.Sequential(nn.Flatten(), nn.Linear(features, hidden), nn.ReLU())
    model = EncoderHeadNet(body, nn.Linear(hidden, classes))
    vector_to_parameters(initial, model.parameters())
    loaders = [
        FastDataLoader(
            torch.tensor(inputs),
            torch.tensor(labels),
            num_labels=classes,
            batch_size=keys["batch"],
            shuffle=True,
        )
        for inputs, labels in parts
    ]
    data = DummyDataContainer(loaders, [None] * len(loaders), None, classes)
    common = {"FedPer": model.encoder, "LG-FedAvg": model.head}.get(keys["method"], model)
    settings = {
        "client": {
            "batch_size": keys["batch"],
            "local_epochs": keys["epochs"],
            "loss": "CrossEntropyLoss",
            "model": model,
            "optimizer": {"name": "SGD", "lr": keys["rate"], "momentum": keys["momentum"]},
            "scheduler": {"name": "StepLR", "step_size": keys["epochs"], "gamma": keys["decay"]},
            **keys["client"],
        },
        "server": keys["server"],
        "model": common,
    }
    splitter = DataSplitter(data, client_split=0.0)
    run = METHODS[keys["method"]](len(loaders), splitter, DDict(settings))
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        run.run(keys["rounds"], keys["share"])
    np.savez(
        place / "models.npz",
        **{name: served(client) for name, client in zip(keys["clients"], run.clients, strict=True)},
    )


def served(client: object) -> np.ndarray:
    """The parameters of the model that serves a client; of FedROD the sum of both heads."""
    values = parameters_to_vector(client.local_model.parameters()).detach().clone()
    own = getattr(client, "inner_model", None)
    if own is not None:
        head = parameters_to_vector(own.parameters()).detach()
        values[-len(head) :] += head
    return values.numpy()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
