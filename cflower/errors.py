"""The errors that cflower raises on purpose: each states the problem and its cure."""


class CFlowerError(Exception):
    """Base of every error that a user, an operator or a client can cause."""


class ConfigError(CFlowerError):
    """A run-config value that is missing, misspelt, of a wrong type or out of range."""


class DataError(CFlowerError):
    """A data source that cannot be read, dealt out or learned from."""


class FederationError(CFlowerError):
    """The federation cannot start or go on: too few nodes, no valid reply."""


class RunFolderError(CFlowerError):
    """A run folder that is missing, ambiguous, incomplete or damaged."""


class OtherVersionError(RunFolderError):
    """A run folder in the format of another version of cflower."""


class ExportError(CFlowerError):
    """A model that cannot be written as the file that was asked for."""


def first_line(error: BaseException, most: int = 200) -> str:
    r"""The first line of an error's text, or its type if there is no text.

    >>> first_line(ValueError("wrong.\nReally."))
    'wrong'
    """
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:most] if lines else type(error).__name__
