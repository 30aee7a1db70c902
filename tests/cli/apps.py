"""Small Flower apps in folders of their own, as others have them."""

from pathlib import Path
from textwrap import dedent

from flower_app import pyproject

CONFIG = {"num-server-rounds": 2, "wanted.step": 1.0, "where": "here.txt"}
SERVER = """\
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    result = FedAvg().start(
        grid, ArrayRecord({"w": Array(np.zeros(1))}), num_rounds=config["num-server-rounds"]
    )
    found = [f"{value:g}" for value in result.arrays["w"].numpy()]
    Path(config["where"]).write_text(" ".join([*found, str(len(list(grid.get_node_ids())))]))
"""
CLIENT = """\
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    {before}
    wanted, step = context.node_config["partition-id"], context.run_config["wanted.step"]
    now = message.content["arrays"]["w"].numpy()
    arrays = ArrayRecord({{"w": Array(now + step * (wanted - now))}})
    metrics = MetricRecord({{"num-examples": 1}})
    return Message(RecordDict({{"arrays": arrays, "metrics": metrics}}), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    return Message(RecordDict({{"m": MetricRecord({{"num-examples": 1}})}}), reply_to=message)
"""


def flower_app(
    folder: Path,
    name: str,
    *,
    server: str = SERVER,
    before_training: str = "pass",
    serverapp: str = "",
    clientapp: str = "",
) -> Path:
    """An app without cflower: client i wants the model to be i, and goes there.

    Parameters
    ----------
    folder : Path
        Where its folder is made.
    name : str
        Of the app and of its package: one for each app, because they are imported.
    server : str
        The text of its server_app.py.
    before_training : str
        A statement at the beginning of its clients' training.
    serverapp, clientapp : str
        Instead of the right references.
    """
    app = folder / f"{name}-app"
    package = app / name
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "server_app.py").write_text(dedent(server))
    (package / "client_app.py").write_text(CLIENT.format(before=before_training))
    (app / "pyproject.toml").write_text(
        pyproject(
            name,
            serverapp or f"{name}.server_app:app",
            clientapp or f"{name}.client_app:app",
            CONFIG,
        )
    )
    return app
