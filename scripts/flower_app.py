"""The ``pyproject.toml`` of a small Flower app in a folder of its own, to be measured or tested."""

import json
from collections.abc import Mapping


def pyproject(name: str, serverapp: str, clientapp: str, config: Mapping[str, object]) -> str:
    """The text of it.

    Parameters
    ----------
    name : str
        Of the app.
    serverapp, clientapp : str
        References such as ``package.module:app``.
    config : mapping
        The keys of its run config, with texts or numbers.
    """
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items())
    return f"""\
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
{keys}"""
