"""`report.html`: the content of a run folder as one page that needs no network."""

from pathlib import Path

from cflower.errors import CFlowerError, RunFolderError
from cflower.runs.record import RunRecord
from cflower.runs.report.content import page_content
from cflower.runs.report.page import page
from cflower.runs.writing import replace_file

REPORT = "report.html"


def write_report(run: Path, metric: str = "") -> Path:
    """Write a run's page into its folder; ``metric`` as in `RunRecord.read`.

    Raises a `RunFolderError` if a file is damaged.
    """
    record, path = RunRecord.read(run, metric), run / REPORT
    try:
        text = page(page_content(record))
    except CFlowerError:
        raise
    except Exception as error:  # a file from outside can be wrong in any way
        raise RunFolderError(
            f"The report of the run {record.name} cannot be made ({error!r}): its files do not fit "
            "each other. Copy the whole run folder again."
        ) from error
    replace_file(path, text.encode(), lasting=False)
    return path
