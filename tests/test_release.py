"""What is published: the package's metadata and links, and the app as Flower's hub takes it."""

import re
import tomllib
from io import BytesIO
from zipfile import ZipFile

import pytest
from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_files
from flwr.cli.build import build_fab_from_disk
from release import main, with_absolute_links

from cflower import cli
from cflower.cli import APP_MODULES
from tests.command import PROJECT, in_new_process

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")
PAGE = "cflower/runs/report/page.json"


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release")
    main("someone/flower-of-c", folder)
    return folder


def test_links_into_the_repository_become_absolute():
    text = "[![a](b.png)](c.md) [d](docs/e.md#f) [g](#h) [i](https://j)"
    site = "https://github.com/me/it"
    assert with_absolute_links(text, "me/it") == (
        f"[![a]({site}/raw/main/b.png)]({site}/blob/main/c.md) [d]({site}/blob/main/docs/e.md#f) "
        "[g](#h) [i](https://j)"
    )


def test_the_package_has_addresses_and_a_licence_expression(release):
    project = tomllib.loads((release / "package" / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert all("someone/flower-of-c" in url for url in project["urls"].values())
    assert {"authors", "classifiers", "keywords", "description"} <= set(project)
    links = re.findall(r"\]\(([^)]+)\)", (release / "package" / "README.md").read_text())
    assert len(links) > 20
    assert all(link.startswith(("https://", "#")) for link in links)


def test_flowers_hub_takes_the_app(release, capsys):
    app = release / "cflower"
    files = _collect_file_paths(app)
    _validate_files(files)
    assert 140 < len(files) < 400
    assert sum(path.stat().st_size for path in files) < 1_500_000
    assert app / PAGE in files
    assert "![" not in (app / "README.md").read_text()


def test_the_app_from_the_hub_builds_into_the_same_bundle(release):
    def names(bundle):
        return set(ZipFile(BytesIO(bundle)).namelist())

    assert names(build_fab_from_disk(release / "cflower")) == names(build_fab_from_disk(PROJECT))


def test_only_the_package_makes_pytorch_an_extra(release):
    package, app = (
        tomllib.loads((release / folder / "pyproject.toml").read_text())["project"]
        for folder in ("package", "cflower")
    )
    assert [name for name in package["dependencies"] if "torch" in name] == []
    assert len(package["optional-dependencies"]["app"]) == 3
    both = package["dependencies"] + package["optional-dependencies"]["app"]
    assert sorted(both) == sorted(app["dependencies"])


@pytest.mark.slow
def test_the_strategy_needs_nothing_of_the_apps_extra():
    hidden = dict.fromkeys(APP_MODULES)
    code = (
        f"import sys; sys.modules |= {hidden}; from cflower import ClusteredFL, Recorder, simulate"
    )
    run = in_new_process(code)
    assert run == ""


def test_a_command_that_needs_the_extra_says_so_in_one_sentence(monkeypatch, capsys):
    def needs_torch():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(cli, "app", needs_torch)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == (
        "Error: cflower's own app, its models and its data need torch: pip install 'cflower[app]'\n"
    )
