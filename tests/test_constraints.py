"""constraints.txt, which CI installs, pins what pyproject.toml asks for."""

import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.command import PROJECT


def test_every_dependency_is_pinned_within_its_bounds():
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = map(Requirement, project["dependencies"] + extras["dev"] + extras["export"])
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    for requirement in wanted:
        name = canonicalize_name(requirement.name)
        if name != "cflower":
            assert name in pins, f"{name} has no pin: run `make constraints`"
            assert pins[name] in requirement.specifier, f"{requirement}, but {pins[name]} is pinned"
