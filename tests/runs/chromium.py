"""Pages in Chromium, for the tests of the report."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
IN_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("playwright") is None, reason="playwright is not installed"),
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed"),
    pytest.mark.filterwarnings("ignore"),
]


class Visit:
    """A page with its requests; it must not log or complain of anything."""

    def __init__(
        self,
        browser: Any,
        url: str,
        *,
        width: int = 1280,
        theme: str = "light",
        touch: bool = False,
    ) -> None:
        self.page = browser.new_page(
            viewport={"width": width, "height": 900},
            color_scheme=theme,
            reduced_motion="reduce",
            has_touch=touch,
            accept_downloads=True,
        )
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.goto(url)
        self.page.wait_for_selector(".stage svg")

    def __enter__(self) -> "Visit":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.page.close()
        assert kind or self.complaints == []

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).first.inner_text())

    def texts(self, selector: str) -> list[str]:
        return list(self.page.locator(selector).all_inner_texts())

    def saved(self, name: str) -> bytes:
        """What the button of this name saves."""
        with self.page.expect_download() as download:
            self.page.get_by_role("button", name=name).first.click()
        return Path(download.value.path()).read_bytes()
