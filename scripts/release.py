"""What is published: a folder to build wheel and sdist from, and the app for Flower's hub.

Both are the tracked files of this clone with a few changes: an index and the hub have none of the
files that README.md links to, so its links become absolute (the hub shows no pictures either); an
index takes a licence expression, where Flower wants the file; the address of the repository, which
this clone does not know, replaces OWNER/cflower. In the package what only cflower's own app needs
(`APP_ONLY`) is the extra ``app``: who brings an app needs no PyTorch. In the clone, whose
pyproject.toml `flwr run` reads, they are dependencies.
"""

import re
import subprocess
from pathlib import Path
from typing import Annotated

import typer

ROOT = Path(__file__).parents[1]
PLACEHOLDER = "OWNER/cflower"
LICENCE = 'license = { file = "LICENSE" }'
EXPRESSION = 'license = "Apache-2.0"\nlicense-files = ["LICENSE"]'
NOT_ON_THE_HUB = '"docs/**", "examples/**", "scripts/**", "tests/**", '
"""Patterns of `fab-exclude`: one that matches nothing is an error."""
APP_ONLY = "torch", "torchvision", "flwr-datasets[vision]"
EXTRAS = "[project.optional-dependencies]\n"
PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)\n*")


def main(
    repository: Annotated[str, typer.Argument(help="OWNER/NAME of the public repository.")],
    destination: Annotated[Path, typer.Argument(help="A new folder.")],
) -> None:
    """Write DESTINATION/package and DESTINATION/cflower, the app."""
    readme = with_absolute_links((ROOT / "README.md").read_text(), repository)
    project = (ROOT / "pyproject.toml").read_text().replace(PLACEHOLDER, repository)
    for kind in ("package", "cflower"):
        copy_tracked(destination / kind)
    write(destination / "package", readme, with_app_extra(project.replace(LICENCE, EXPRESSION)))
    write(destination / "cflower", PICTURE.sub("", readme), project.replace(NOT_ON_THE_HUB, ""))


def with_absolute_links(text: str, repository: str) -> str:
    """README.md with absolute links into the repository."""
    site = f"https://github.com/{repository}"
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\1{site}/raw/main/", text)
    return re.sub(r"(\]\()(?!https?:|#)", rf"\1{site}/blob/main/", text)


def with_app_extra(project: str) -> str:
    """A pyproject.toml in which `APP_ONLY` are no dependencies, but the extra ``app``."""
    dependency = r'^    "{}[<>=].*\n'
    lines = []
    for name in APP_ONLY:
        line = re.search(dependency.format(re.escape(name)), project, re.MULTILINE)
        assert line, f"pyproject.toml has no dependency {name}"
        project = project.replace(line[0], "", 1)
        lines.append(line[0])
    return project.replace(EXTRAS, f"{EXTRAS}app = [\n{''.join(lines)}]\n", 1)


def copy_tracked(destination: Path) -> None:
    """Copy the package, the licence and the changelog."""
    command = ["git", "ls-files", "cflower", "LICENSE", "CHANGELOG.md"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        target = destination / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())


def write(folder: Path, readme: str, project: str) -> None:
    """Write the two files that are changed."""
    (folder / "README.md").write_text(readme)
    (folder / "pyproject.toml").write_text(project)


if __name__ == "__main__":
    typer.run(main)
