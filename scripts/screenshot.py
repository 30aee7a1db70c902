"""The picture of a run's report: `python scripts/screenshot.py RUN [docs/pictures/report.png]`.

It shows what a browser window shows first. Needs Debian's chromium.
"""

import sys
from pathlib import Path
from shutil import which

from playwright.sync_api import sync_playwright

from cflower.runs.report import write_report


def main(run: Path, picture: Path) -> None:
    """Write the report of a run folder anew, then its picture."""
    page_address = write_report(run.expanduser().absolute()).as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=which("chromium"), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(
            viewport={"width": 1200, "height": 900}, color_scheme="light", reduced_motion="reduce"
        )
        page.goto(page_address)
        page.wait_for_selector("svg")
        page.screenshot(path=picture)
        browser.close()
    print(f"Written: {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(*sys.argv[2:] or ["docs/pictures/report.png"]))
