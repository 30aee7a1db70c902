"""The constraint files pin what pyproject.toml asks for: the newest for CI, and the lowest."""

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.command import PROJECT

MADE_BY = {
    "constraints.txt": "make constraints",
    "constraints-oldest.txt": "make constraints-oldest",
}


@pytest.mark.parametrize("file", MADE_BY)
def test_every_dependency_is_pinned_within_its_bounds(file):
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = map(Requirement, project["dependencies"] + extras["dev"] + extras["export"])
    lines = (PROJECT / file).read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        if name != "cflower":
            assert name in pins, f"{name} has no pin: run `{MADE_BY[file]}`"
            assert pins[name] in requirement.specifier, f"{requirement}, but {pins[name]} is pinned"
