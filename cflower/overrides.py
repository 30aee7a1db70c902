"""Run-config values from the command line."""

from typing import Any

from cflower.errors import ConfigError


def read_overrides(config: list[str], option: str = "-c") -> dict[str, Any]:
    """The values of ``-c``, or another option, in Flower's own syntax.

    Raises
    ------
    ConfigError
        If the file is missing or the text is no TOML.
    """
    import click
    from flwr.common.config import parse_config_args

    try:
        return dict(parse_config_args(config))
    except FileNotFoundError:
        raise ConfigError(f"There is no file {config[0]!r}.") from None
    except (click.ClickException, ValueError) as error:
        message = error.message if isinstance(error, click.ClickException) else str(error)
        raise ConfigError(f"Cannot read {option} {' '.join(config)!r}: {message}") from None
