"""The Flower app bundle: everything the apps need, and little else, goes to every SuperNode."""

from fnmatch import fnmatch
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import pytest
from flwr.cli.build import build_fab_from_disk

from tests.command import PROJECT, in_new_process

MOST_BYTES = 1_000_000
"""Of all files: Flower does not compress them."""
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")


@pytest.fixture(scope="module")
def bundle():
    return build_fab_from_disk(PROJECT)


def test_the_bundle_holds_the_package_and_little_else(bundle):
    sizes = {entry.filename: entry.file_size for entry in ZipFile(BytesIO(bundle)).infolist()}
    del sizes[".info/CONTENT"]  # Flower's own list of them
    page = "cflower/runs/report/page.json"
    others = {name for name in sizes if not name.endswith(".py")}
    assert others == {"pyproject.toml", "LICENSE", page}
    assert sum(sizes.values()) < MOST_BYTES


def test_no_module_has_the_name_of_a_test():
    """Flower leaves them out of every bundle."""
    modules = [path.name for path in (PROJECT / "cflower").rglob("*.py")]
    assert not [
        name for name in modules if fnmatch(name, "test_*.py") or fnmatch(name, "*_test.py")
    ]


@pytest.mark.slow
def test_both_apps_and_the_report_work_from_the_bundle_alone(bundle, tmp_path):
    ZipFile(BytesIO(bundle)).extractall(tmp_path)
    program = (
        "import cflower.server_app, cflower.client_app; from cflower.runs.report.page import page; "
        "assert 'drawTree' in page({'run': {'id': ''}}); print(cflower.__file__)"
    )
    # Modules of the working folder come first, before an installed cflower.
    assert Path(in_new_process(program, cwd=tmp_path)).is_relative_to(tmp_path)
