"""The pictures of the report as files, drawn by the report in a browser without a window."""

import pytest

from cflower.errors import ConfigError
from cflower.runs import figures
from cflower.runs.report import REPORT
from tests.command import output_of
from tests.runs.chromium import IN_CHROMIUM


class TestInChromium:
    pytestmark = IN_CHROMIUM

    def test_every_picture_is_written_as_svg_png_and_pdf(self, made_up, tmp_path):
        out = output_of("report", made_up, "--figures", tmp_path / "new")
        names = ("accuracy", "loss", "tree", "similarity-6-0", "norms-0", "norms-0.0", "norms-0.1")
        for name in names:
            svg, png, pdf = (tmp_path / "new" / f"{name}.{end}" for end in ("svg", "png", "pdf"))
            assert all(f"Figure: {path}" in out for path in (svg, png, pdf))
            assert svg.read_text().startswith("<svg") and "var(" not in svg.read_text()
            assert png.read_bytes().startswith(b"\x89PNG")
            assert pdf.read_bytes().startswith(b"%PDF")
        assert len(list((tmp_path / "new").iterdir())) == 3 * len(names)


def test_without_a_browser_it_says_what_to_do(made_up, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"none was found: install one .* or open report\.html"):
        figures.write_figures(made_up / REPORT, tmp_path)
