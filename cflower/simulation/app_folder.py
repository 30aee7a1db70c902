"""The folder of any Flower app: what its pyproject.toml names and sets."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict, get_project_config
from flwr.serverapp import ServerApp

from cflower.errors import ConfigError

KINDS = {"serverapp": ServerApp, "clientapp": ClientApp}


@dataclass(frozen=True)
class AppFolder:
    """A Flower app on disk.

    Attributes
    ----------
    path : Path
        Absolute.
    components : mapping
        From "serverapp" and "clientapp" to "module:attribute".
    config : mapping
        ``[tool.flwr.app.config]``, nested keys joined by dots, as in ``context.run_config``.
    """

    path: Path
    components: Mapping[str, str]
    config: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> "AppFolder":
        """Read the folder's pyproject.toml.

        Raises
        ------
        ConfigError
            If there is none, or it is not a Flower app's.
        """
        path = path.expanduser().absolute()
        try:
            app = get_project_config(path)["tool"]["flwr"]["app"]
            config = flatten_dict(app.get("config"))
        except FileNotFoundError:
            raise ConfigError(
                f"There is no pyproject.toml in {path}: expected the folder of a Flower app, as "
                "for `flwr run`."
            ) from None
        except (ValueError, OSError) as error:
            problem = " ".join(str(error).split())
            raise ConfigError(f"{path} is not the folder of a Flower app: {problem}") from None
        if missing := KINDS.keys() - app["components"].keys():
            raise ConfigError(
                f"{path / 'pyproject.toml'} names no {min(missing)} in [tool.flwr.app.components]."
            )
        return cls(path, app["components"], config)

    def configured(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """The app's config with other values for some of its keys.

        Raises
        ------
        ConfigError
            For a key that the app does not have; with the nearest right one.
        """
        for key in overrides:
            if key not in self.config:
                near = get_close_matches(key, self.config, n=1)
                known = ", ".join(self.config) or "it has none"
                hint = f"did you mean {near[0]!r}?" if near else f"its keys: {known}."
                raise ConfigError(f"Unknown run-config key {key!r} of {self.path.name}: {hint}")
        return {**self.config, **overrides}

    def load(self, component: str) -> Any:
        """The ServerApp or ClientApp, imported from the folder as ``flwr run`` would.

        Raises
        ------
        ConfigError
            If the reference leads nowhere, or a module that the app imports is not installed.
        Exception
            Whatever the app's own code raises while it is imported.
        """
        reference = self.components[component]
        module, _, attribute = reference.partition(":")
        named = f"The {component} of {self.path.name}, {reference!r},"
        if not module or not attribute:
            raise ConfigError(f"{named} is no reference of the form 'package.module:attribute'.")
        if str(self.path) not in sys.path:
            sys.path.insert(0, str(self.path))
        try:
            loaded = import_module(module)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if f"{module}.".startswith(f"{missing}."):
                raise ConfigError(f"{named} is not there: no module {missing!r}.") from None
            raise ConfigError(
                f"{named} needs the module {missing!r}, which is not installed here: "
                f"pip install {self.path}"
            ) from error
        try:
            app = attrgetter(attribute)(loaded)
        except AttributeError:
            raise ConfigError(f"{named} is not there: {module} has no {attribute!r}.") from None
        if not isinstance(app, KINDS[component]):
            raise ConfigError(
                f"{named} is a {type(app).__name__}, not a {KINDS[component].__name__}."
            )
        return app
