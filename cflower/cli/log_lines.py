"""Flower's log as the lines that `cflower` itself prints: without prefixes and colour codes."""

from logging import WARNING, LogRecord


def plain_log(*, progress_only: bool = False) -> None:
    """Print Flower's log in plain lines from now on; or of it only warnings and the progress."""
    from cflower.messages.flower import console_handler

    console_handler.format = plain_line  # type: ignore[method-assign]
    console_handler.filters = []
    if progress_only:
        console_handler.addFilter(lambda r: r.levelno >= WARNING or hasattr(r, "progress"))


def plain_line(record: LogRecord) -> str:
    """The message of a log record; a warning begins with its level.

    >>> from logging import makeLogRecord
    >>> plain_line(makeLogRecord({"msg": "3 of %d", "args": (4,), "levelno": 30,
    ...     "levelname": "WARNING"}))
    'Warning: 3 of 4'
    """
    level = f"{record.levelname.capitalize()}: " if record.levelno >= WARNING else ""
    return level + record.getMessage()
