"""What users import is documented, listed and typed; the version is written in one place."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

import cflower

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", cflower.__all__)
def test_every_public_name_documents_its_parameters_and_result(name):
    thing = getattr(cflower, name)
    text = inspect.getdoc(thing) or ""
    assert text, f"{name} has no docstring"
    signature = inspect.signature(thing)
    for parameter in signature.parameters:
        described = re.search(rf"^(.*, )?\*{{0,2}}{parameter}(, .*)?( : .*)?$", text, re.M)
        assert described, f"the docstring of {name} does not describe {parameter}"
    if inspect.isfunction(thing) and signature.return_annotation not in (None, "None"):
        assert "\nReturns\n-------\n" in text, f"the docstring of {name} has no Returns"


def test_the_api_page_lists_exactly_the_public_names():
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/api.md").read_text(), re.M)
    assert sorted(listed) == sorted(cflower.__all__)


def test_the_newest_release_of_the_changelog_is_the_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    releases = re.findall(r"^## (\d+\.\d+\.\d+) ", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert releases[0] == version
