"""FedROD, FedPer, LG-FedAvg and FedAMP by the code of fluke (fluke-fl 0.8.1 of PyPI).

    python -m venv VENV && VENV/bin/pip install fluke-fl==0.8.1
    FLUKE_PYTHON=VENV/bin/python python scripts/run.py peers --methods fluke-fedrod,... --out ...

The clients' examples, the first model and the settings go to ``inside_fluke.py`` in a process of
that environment, and the clients' models come back. fluke's defaults where the run config has no
value: λ = 0.2, σ = 0.1 and α = 0.1 of FedAMP, the common part averaged without weights. Differences
from this project's training: the order of the examples, the last batch may be a small one, and
momentum goes on from round to round. Only for models of one hidden layer.

- FedROD: Chen and Chao, ICLR 2022. A client's model has the sum of the common and its own head.
- FedPer: Arivazhagan et al., 2019, arXiv 1912.00818. A common body and a head for each client.
- LG-FedAvg: Liang et al., 2020, arXiv 2001.01523. A body for each client and a common head.
- FedAMP: Huang et al., AAAI 2021. A model for each client, drawn to those that resemble it.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cflower.errors import ConfigError
from peers.federation import Federation, Outcome

PYTHON = "FLUKE_PYTHON"
"""The environment variable with the Python that has fluke."""


def run(
    federation: Federation,
    name: str,
    client: Mapping[str, float] | None = None,
    server: Mapping[str, float] | None = None,
) -> Outcome:
    """One of fluke's methods, such as ``FedROD``, and the settings that only it has."""
    python, settings = os.environ.get(PYTHON), federation.training
    if not python:
        raise ConfigError(f"{PYTHON} is not set: name the Python of an environment with fluke-fl.")
    keys = {
        "method": name,
        "clients": list(federation.clients),
        "seed": federation.config.seed,
        "rounds": federation.rounds,
        "share": federation.config.fraction_train,
        "epochs": settings.local_epochs,
        "batch": settings.batch_size,
        "rate": settings.learning_rate,
        "decay": settings.learning_rate_decay,
        "momentum": settings.momentum,
        "client": dict(client or {}),
        "server": dict(server or {}),
    }
    with TemporaryDirectory() as place:
        arrays = {"initial": federation.initial}
        for client, data in federation.clients.items():
            arrays |= {f"{client} x": data.train.inputs, f"{client} y": data.train.labels}
        np.savez(Path(place, "clients.npz"), **arrays)
        Path(place, "keys.json").write_text(json.dumps(keys))
        script = Path(__file__).with_name("inside_fluke.py")
        with federation.on_client():  # a process of its own: these seconds are not counted
            subprocess.run([python, script, place], check=True)
        with np.load(Path(place, "models.npz")) as found:
            models = {client: found[client] for client in federation.clients}
    present = len(federation.participants(1)) * federation.rounds
    federation.cost.trainings = present
    federation.send(present * len(federation.initial))
    federation.receive(present * len(federation.initial))
    return Outcome(models)
