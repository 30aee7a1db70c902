"""The Dockerfile, which nobody here can build: its parts, its commands, and the page about them."""

import re
import shutil
import subprocess
import tomllib

import pytest

from tests.command import BIN, ENVIRONMENT, PROJECT
from tests.test_deployment_guide import blocks as of_the_machines
from tests.test_deployment_guide import words

DOCKERFILE = PROJECT / "Dockerfile"
PAGE = PROJECT / "docs" / "guide" / "containers.md"
TARGETS = {"superlink": "flower-superlink", "supernode": "flower-supernode", "cflower": "cflower"}
"""The program that each image starts."""


def instructions():
    """The instructions of the Dockerfile by stage, each its keyword and the rest of its line."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stages = {}
    for line in filter(None, text.splitlines()):
        keyword, _, rest = line.partition(" ")
        if keyword == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = list(stages.get(base, []))  # a stage has all of the one it begins with
        stages[name].append((keyword, rest))
    return stages


def last(stage, keyword):
    return [rest for word, rest in instructions()[stage] if word == keyword][-1]


def commands(program):
    """The page's commands with this word in them."""
    found = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [words(block) for block in found if program in words(block)]


def test_the_page_builds_every_image_of_the_dockerfile():
    built = re.findall(r"^docker build --target (\S+) --tag (\S+) \.$", PAGE.read_text(), re.M)
    assert {target for target, _ in built} == set(TARGETS) == set(list(instructions())[2:])
    assert [tag.removeprefix("cflower-") for _, tag in built] == list(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_no_image_runs_as_root_or_holds_anything_but_the_package(target):
    user, group = last(target, "USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert "700 /etc/cflower /var/lib/cflower" in last(target, "RUN")
    copied = [rest for word, rest in instructions()[target] if word in ("COPY", "ADD")]
    assert copied == ["--from=install /opt/cflower /opt/cflower"]


def test_the_build_gets_what_the_wheel_is_made_of_and_nothing_else():
    copied = " ".join(rest for word, rest in instructions()["install"] if word == "COPY").split()
    sources = {name for name in copied if name != "./"}
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    made_of = {*wheel["packages"], *wheel["force-include"], project["project"]["readme"]}
    assert sources == made_of | {project["project"]["license"]["file"], "constraints.txt"}
    kept = (PROJECT / ".dockerignore").read_text().splitlines()
    assert kept.index("*") < kept.index("!cflower") < kept.index("**/__pycache__")
    assert {line[1:] for line in kept if line.startswith("!")} == sources


def test_the_images_have_the_python_that_ci_tests():
    pinned = (PROJECT / "constraints.txt").read_text().splitlines()[0]
    (version,) = re.findall(r"Python (3\.\d+)", pinned)
    assert re.findall(r"python:([\d.]+)-slim", DOCKERFILE.read_text()) == [version, version]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "program"), TARGETS.items())
def test_every_image_starts_a_program_that_there_is(target, program):
    (entry,), (argument,) = (
        re.findall(r'"([^"]+)"', last(target, it)) for it in ("ENTRYPOINT", "CMD")
    )
    assert entry == program
    done = subprocess.run([BIN / entry, argument], capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "usage: " in done.stdout.lower()


@pytest.mark.parametrize("target", ["superlink", "supernode"])
def test_a_container_gets_the_flags_of_the_machines_guide_and_no_rights(target):
    (command,) = [it for it in commands(f"cflower-{target}") if "run" in it]
    position = command.index(f"cflower-{target}")
    ways, flags = command[:position], command[position + 1 :]
    (of_the_guide,) = [it for it in of_the_machines("bash") if it.startswith(TARGETS[target])]
    assert flags == words(of_the_guide)[1:]
    assert {"--read-only", "--cap-drop", "ALL", "no-new-privileges"} <= set(ways)
    assert "/etc/cflower:/etc/cflower:ro" in ways
    assert ("/var/lib/cflower/data:/var/lib/cflower/data:ro" in ways) == (target == "supernode")


@pytest.mark.skipif(shutil.which("hadolint", path=BIN) is None, reason="needs hadolint")
def test_the_linter_has_nothing_to_say():
    done = subprocess.run([BIN / "hadolint", DOCKERFILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
