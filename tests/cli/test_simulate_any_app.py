"""`cflower simulate APP` with apps that know nothing of cflower."""

import pytest

from tests.cli.apps import SERVER, flower_app
from tests.command import PROJECT, cflower, error_of, output_of

pytestmark = pytest.mark.usefixtures("a_path_of_its_own")


@pytest.fixture
def a_path_of_its_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")


def test_it_runs_with_its_own_config_where_it_is_called(tmp_path, caplog):
    app = flower_app(tmp_path, "plainaverage")
    with caplog.at_level("INFO", "flwr"):
        output_of("simulate", app)
    # Ten clients who want the model to be 0 to 9; relative paths are those of the caller.
    assert (tmp_path / "working" / "here.txt").read_text() == "4.5 10"
    assert "[ROUND 2/2]" in caplog.text
    config = "wanted.step=0.5 where='there.txt'"
    output_of("simulate", "../plainaverage-app", "--clients", 3, "-c", config)
    assert (tmp_path / "working" / "there.txt").read_text() == "0.75 3"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("num-server-round=3", "Unknown run-config key 'num-server-round' of plainaverage-app: "),
        ("num-server-round=3", "did you mean 'num-server-rounds'?"),
        ("xyz=3", "its keys: num-server-rounds, wanted.step, where."),
        ("where=there", "put texts in quotes: where='there'"),
    ],
)
def test_a_wrong_key_of_it_is_one_sentence(tmp_path, config, says):
    assert says in error_of("simulate", flower_app(tmp_path, "plainaverage"), "-c", config)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"serverapp": "nosuch.server:app"}, "cannot be loaded: there is no module 'nosuch'"),
        ({"serverapp": "{name}.nosuch:app"}, "there is no module '{name}.nosuch'"),
        ({"clientapp": "{name}.client_app:client"}, "client from module {name}.client_app"),
        ({"clientapp": "{name}.client_app"}, "Missing attribute in {name}.client_app"),
        ({"clientapp": "{name}.server_app:app"}, "is a ServerApp, not a ClientApp"),
        ({"server": "import nosuchlibrary"}, "no module 'nosuchlibrary'. Correct"),
        ({"server": "import flwr.client.typing"}, "It is not in flwr 1."),
    ],
)
def test_components_that_lead_nowhere_are_one_sentence(tmp_path, broken, says, request):
    name = f"broken{request.node.callspec.indices['broken']}"
    app = flower_app(tmp_path, name, **broken)
    assert says.replace("{name}", name) in error_of("simulate", app)


def test_a_folder_that_is_no_app_is_one_sentence(tmp_path):
    for folder in (tmp_path, tmp_path / "nosuch"):
        assert "There is no pyproject.toml in" in error_of("simulate", folder)
    for content, says in [
        ("[project", "is not the folder of a Flower app: "),
        ('[project]\nname = "a"\nversion = "1"\n', "Missing [tool.flwr.app] section"),
    ]:
        (tmp_path / "pyproject.toml").write_text(content)
        assert says in error_of("simulate", tmp_path)
    app = flower_app(tmp_path, "writes")
    for option in (["--out", tmp_path], ["--baselines"]):
        error = error_of("simulate", app, *option)
        assert f"Got {option[0]}, but writes-app itself decides" in error


def test_a_bug_of_the_app_is_not_hidden(tmp_path):
    server = SERVER.replace('config["where"]', 'config["wehre"]')
    with pytest.raises(KeyError, match="wehre"):
        cflower("simulate", flower_app(tmp_path, "buggyserver", server=server))
    with pytest.raises(ZeroDivisionError):
        cflower("simulate", flower_app(tmp_path, "buggyimport", server="app = 1 / 0"))


def test_clients_that_fail_alike_are_printed_once(tmp_path):
    failing = 'assert context.node_config["partition-id"] > 2, "too few"'
    status, _, err = cflower("simulate", flower_app(tmp_path, "fails", before_training=failing))
    assert status == 0
    assert err.count(" failed:\nTraceback") == err.count("Traceback") == 1
    assert "AssertionError: too few" in err
    assert (tmp_path / "working" / "here.txt").read_text() == "6 10"


def test_the_folder_of_cflowers_own_app_is_that_app(tmp_path):
    apps = {f"{side}app": f"cflower.{side}_app:app" for side in ("server", "client")}
    app = flower_app(tmp_path, "mine", **apps)
    status, _, err = cflower("simulate", app)
    assert (status, "Unknown run-config key 'wanted.step'" in err) == (1, True)
    tiny = "num-server-rounds=1 dataset-size=200 local-epochs=1 model='linear'"
    options = ("--clients", 3, "-c", tiny, "--out", tmp_path / "runs")
    out = output_of("simulate", PROJECT, *options)
    assert "cluster 0: 3 clients" in out
