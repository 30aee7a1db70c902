"""Small Flower apps in folders of their own, as others have them."""

from pathlib import Path
from textwrap import dedent

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
    return Message(RecordDict({{"m": MetricRecord({measures})}}), reply_to=message)
"""


PYPROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
dependencies = ["flwr"]

[tool.flwr.app]
publisher = "someone"

[tool.flwr.app.components]
serverapp = "{serverapp}"
clientapp = "{clientapp}"

[tool.flwr.app.config]
num-server-rounds = 2
wanted.step = 1.0
where = "here.txt"
"""


def flower_app(
    folder: Path,
    name: str,
    *,
    server: str = SERVER,
    before_training: str = "pass",
    serverapp: str = "{name}.server_app:app",
    clientapp: str = "{name}.client_app:app",
    measures: str = '{"num-examples": 1}',
) -> Path:
    """An app without cflower, in a folder of its own: client i moves the model towards i.

    ``name`` is that of the app and of its package, which must be new, as it is imported.
    ``before_training`` is a statement at the beginning of the clients' training; ``serverapp``
    and ``clientapp`` are references to use instead of the right ones. ``measures`` is an expression
    for the clients' metrics of ``message.content``.
    """
    app = folder / f"{name}-app"
    package = app / name
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "server_app.py").write_text(dedent(server))
    (package / "client_app.py").write_text(CLIENT.format(before=before_training, measures=measures))
    components = {"serverapp": serverapp, "clientapp": clientapp}
    references = {side: text.format(name=name) for side, text in components.items()}
    (app / "pyproject.toml").write_text(PYPROJECT.format(name=name, **references))
    return app
