"""`report.html`: the content of a run folder as one page that needs no network."""

from pathlib import Path

from cflower.runs.reading import outside
from cflower.runs.record import RunRecord
from cflower.runs.report.content import page_content
from cflower.runs.report.page import page
from cflower.runs.writing import replace_file

REPORT = "report.html"


def write_report(run: Path, metric: str = "", *, live: bool = False) -> Path:
    """Write a run's page into its folder; a ``live`` one reloads itself, for a run that goes on."""
    path = run / REPORT
    with outside(run):
        text = page(page_content(RunRecord.read(run, metric)), live=live)
    replace_file(path, text.encode(), lasting=False)
    return path
