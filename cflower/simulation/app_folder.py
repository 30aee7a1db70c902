"""The folder of any Flower app: the components and the config in its pyproject.toml."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict, get_project_config
from flwr.serverapp import ServerApp

from cflower.errors import ConfigError, first_line
from cflower.messages.flower import load_app
from cflower.settings import did_you_mean

COMPONENTS = {"serverapp": ServerApp, "clientapp": ClientApp}


@dataclass(frozen=True)
class AppFolder:
    """A Flower app on disk."""

    path: Path
    """The absolute path."""
    components: Mapping[str, str]
    """The references "module:attribute" of "serverapp" and "clientapp"."""
    config: Mapping[str, Any]
    """``[tool.flwr.app.config]``, nested keys joined by dots, as in ``context.run_config``."""

    @classmethod
    def read(cls, path: Path) -> "AppFolder":
        """Read the folder's pyproject.toml; `ConfigError` if it is not a Flower app's."""
        path = path.expanduser().absolute()
        try:
            app = get_project_config(path)["tool"]["flwr"]["app"]
            config = flatten_dict(app.get("config"))
        except FileNotFoundError:
            raise ConfigError(
                f"There is no pyproject.toml in {path}: expected the folder of a Flower app, as "
                f"for `flwr run`. Data are given to cflower's own app: -c \"dataset='{path}'\"."
            ) from None
        except (ValueError, OSError) as error:
            problem = " ".join(str(error).split())
            raise ConfigError(f"{path} is not the folder of a Flower app: {problem}") from None
        if missing := COMPONENTS.keys() - app["components"].keys():
            raise ConfigError(
                f"{path / 'pyproject.toml'} names no {min(missing)} in [tool.flwr.app.components]."
            )
        return cls(path, app["components"], config)

    def configured(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """The app's config with other values for some keys; `ConfigError` for an unknown key."""
        for key in overrides.keys() - self.config.keys():
            known = ", ".join(self.config) or "it has none"
            hint = did_you_mean(key, self.config) or f": its keys: {known}."
            raise ConfigError(f"Unknown run-config key {key!r} of {self.path.name}{hint}")
        return {**self.config, **overrides}

    def load(self, component: str) -> Any:
        """The ServerApp or ClientApp, imported from the folder as ``flwr run`` would.

        `ConfigError` if the reference is wrong, or a module that the app imports is not installed;
        and any exception that the app's own code raises.
        """
        reference, kind = self.components[component], COMPONENTS[component]
        named = f"The {component} of {self.path.name}, {reference!r},"
        try:
            app = load_app(reference, ConfigError, self.path)
        except ConfigError as error:
            raise ConfigError(f"{named} cannot be loaded: {first_line(error)}.") from None
        except ModuleNotFoundError as error:
            cure = f"Correct the reference, or install what it needs: pip install {self.path}"
            package = str(error.name).partition(".")[0]
            with suppress(PackageNotFoundError):  # such as the app's own package
                cure = f"It is not in {package} {version(package)}: the app needs another version."
            raise ConfigError(
                f"{named} cannot be loaded: there is no module {error.name!r}. {cure}"
            ) from error
        if not isinstance(app, kind):
            raise ConfigError(f"{named} is a {type(app).__name__}, not a {kind.__name__}.")
        return app
