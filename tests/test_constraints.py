"""The constraint files pin what pyproject.toml asks for: the newest for CI, and the lowest."""

import re
import tomllib
from itertools import chain

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.command import PROJECT

MADE_BY = {
    "constraints.txt": "make constraints",
    "constraints-oldest.txt": "make constraints-oldest",
}


def test_every_dependency_has_an_upper_bound():
    content = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    named = [content["build-system"]["requires"], content["project"]["dependencies"]]
    named += content["project"]["optional-dependencies"].values()
    for requirement in map(Requirement, chain.from_iterable(named)):
        operators = {bound.operator for bound in requirement.specifier}
        assert requirement.name == "cflower" or "<" in operators, requirement


def test_pull_requests_are_tested_with_every_python_and_without_code_that_can_change():
    text = (PROJECT / ".github/workflows/test.yml").read_text()
    classifiers = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["classifiers"]
    tested = re.findall(r'"(3\.\d+)"', text)
    assert tested == [c.split(" :: ")[-1] for c in classifiers if ":: 3." in c]
    assert "pull_request:" in text and "run: make fast" in text
    # A tag or a branch of an action is whatever its owner makes of it tomorrow.
    actions = re.findall(r"uses: *(\S+)", text)
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in actions)


def test_a_release_is_built_by_actions_of_fixed_commits():
    text = (PROJECT / ".github/workflows/release.yml").read_text()
    actions = re.findall(r"uses: *(\S+)", text)
    named = [one for one in actions if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", one)]
    assert named == ["pypa/gh-action-pypi-publish@release/v1"]  # its hash could not be verified


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
