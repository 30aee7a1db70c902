"""A user's own function, named in the run config as ``package.module:function``."""

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from cflower.errors import ConfigError, first_line

NAMED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def names_own_code(value: str) -> bool:
    """Whether a value of the run config names a function rather than something built in.

    >>> names_own_code("my_app.models:net"), names_own_code("cnn"), names_own_code("text:/posts")
    (True, False, False)
    """
    return NAMED.fullmatch(value) is not None


def own_function(key: str, value: str) -> Callable[..., Any]:
    """The function that a key's value ``package.module:function`` names.

    It is found as Python finds any module: in the app's folder under `flwr run`, in the folder that
    `cflower` was started in, or among what is installed.
    """
    if not names_own_code(value):
        raise ConfigError(f"Got {key} = {value!r}, but expected package.module:name.")
    module_name, _, name = value.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: nothing installed is hidden by a file that is there
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise ConfigError(
            f"{key} = {value!r}: the module {module_name} cannot be imported "
            f"({type(error).__name__}: {first_line(error)}); its folder has to be the current one "
            "or, under `flwr run`, the app's."
        ) from None
    function = getattr(module, name, None)
    if not callable(function):
        what = "is no function" if hasattr(module, name) else "does not exist"
        raise ConfigError(
            f"{key} = {value!r}: {name} {what} in {getattr(module, '__file__', module_name)}; "
            "correct the name."
        )
    return function  # type: ignore[no-any-return]


def called(key: str, value: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a user's function. Raises a ConfigError with the cause if it raises."""
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{key} = {value!r} failed ({type(error).__name__}: {first_line(error)}): correct it."
        ) from None


def own_object(key: str, value: str, method: str) -> Any:
    """What a user's class or function makes without arguments: an object with this method."""
    made = called(key, value, own_function(key, value))
    if isinstance(made, type) or not callable(getattr(made, method, None)):
        raise ConfigError(
            f"{key} = {value!r} made {made!r:.100}, but expected an object with the method "
            f"{method}."
        )
    return made
