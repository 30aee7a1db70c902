"""Names chosen from a fixed list, refused with the nearest right one when misspelt."""

from collections.abc import Iterable
from difflib import get_close_matches

from cflower.errors import ConfigError


def check_choice(key: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`.

    Parameters
    ----------
    key : str
        The run-config key that the value was given for, named in the error.
    value : str
        What the user wrote.
    choices : iterable of str
        What may be written.

    Raises
    ------
    ConfigError
        If `value` is none of `choices`; names them all, and the nearest.

    Examples
    --------
    >>> check_choice("shift", "rotation", ["none", "rotation"])
    'rotation'
    >>> check_choice("shift", "rotaton", ["none", "rotation"])
    Traceback (most recent call last):
    cflower.errors.ConfigError: shift = 'rotaton' is not known: did you mean 'rotation'? \
It can be none or rotation.
    """
    names = list(choices)
    if value in names:
        return value
    nearest = get_close_matches(value, names, n=1)
    hint = f" did you mean {nearest[0]!r}?" if nearest else ""
    listed = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    separator = ":" if hint else "."
    raise ConfigError(f"{key} = {value!r} is not known{separator}{hint} It can be {listed}.")
