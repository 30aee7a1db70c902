"""The functions of a ClientApp are known without a message."""

import sys
import time
from functools import partial
from threading import Thread
from types import SimpleNamespace

import pytest
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.supercore.object_ref import load_app

from cflower.messages.client_names import (
    UNKNOWN_APP,
    adds_noise,
    bundled_client_app,
    has_function,
    projects,
)
from cflower.privacy.permutation_mod import PermutationMod
from tests.strategy.quadratics import Quadratics

SLOW = "import time\ntime.sleep(0.5)\nfrom flwr.clientapp import ClientApp\napp = ClientApp()\n"


def test_two_threads_load_an_app_completely(tmp_path, monkeypatch):
    (tmp_path / "slow_client_app.py").write_text(SLOW)
    reference = "[tool.flwr.app.components]\nclientapp = 'slow_client_app:app'\n"
    (tmp_path / "pyproject.toml").write_text(reference)
    monkeypatch.syspath_prepend(tmp_path)
    apps: list[object] = []
    threads = [
        Thread(target=lambda: apps.append(bundled_client_app())),
        Thread(target=lambda: apps.append(load_app("slow_client_app:app", OSError, tmp_path))),
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.1)  # the second comes while the first is importing
    for thread in threads:
        thread.join()
    assert len(apps) == 2
    assert apps[0] is apps[1]
    assert isinstance(apps[0], ClientApp)


def test_a_client_app_that_cannot_be_imported_is_unknown_and_may_add_noise(
    tmp_path, monkeypatch, caplog
):
    caplog.set_level("WARNING", "flwr")
    (tmp_path / "lacking_app.py").write_text("import no_such_framework\n")
    reference = "[tool.flwr.app.components]\nclientapp = 'lacking_app:app'\n"
    (tmp_path / "pyproject.toml").write_text(reference)
    monkeypatch.syspath_prepend(tmp_path)
    grid = Quadratics((0, 0)).grid()
    grid.client_app = None
    assert bundled_client_app() is UNKNOWN_APP
    assert adds_noise(grid)
    assert not has_function(grid, "query", if_unknown=False)
    (message,) = [m for m in caplog.messages if "lacking_app:app" in m]
    assert "no_such_framework" in message


def test_an_installed_project_is_not_taken_for_the_app(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'installed'\n[tool.flwr]\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert str(tmp_path) not in [folder for folder, _ in projects()]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert next(projects())[1]["project"]["name"] == "installed"


class SiteDp(LocalDpMod):
    """A hospital's own kind of local differential privacy."""


class Marked(PermutationMod):
    """Says nothing of what it adds to its base class."""


def clipped(message, context, call_next):
    return fixedclipping_mod(message, context, call_next)


def timed(message, context, call_next):
    return call_next(message, context)


def own_noise(message, context, call_next):
    return call_next(message, context)


def renamed(message, context, call_next):
    return fixedclipping_mod(message, context, call_next)


timed.adds_no_noise = True
renamed.__name__ = "message_size_mod"
NOISE = (1.0, 1.0, 1.0, 1e-5)


def grid_of(mods, train_mods=()):
    app = ClientApp(mods=list(mods))

    @app.train(mods=list(train_mods))
    def train(message, context):
        raise NotImplementedError

    @app.evaluate(mods=[own_noise])
    def evaluate(message, context):
        raise NotImplementedError

    return SimpleNamespace(client_app=app)


@pytest.mark.parametrize(
    "mod",
    [
        *(LocalDpMod(*NOISE), SiteDp(*NOISE), fixedclipping_mod, adaptiveclipping_mod),
        *(partial(fixedclipping_mod), partial(SiteDp(*NOISE)), clipped, own_noise, renamed),
        *(lambda message, context, call_next: call_next(message, context), Marked()),
    ],
)
def test_any_mod_on_training_that_is_not_known_may_add_noise(mod, caplog):
    caplog.set_level("WARNING", "flwr")
    for mods, train_mods in ([mod], []), ([], [message_size_mod, mod]):
        caplog.clear()
        assert adds_noise(grid_of(mods, train_mods))
        (said,) = caplog.messages
        assert "nothing is trained beyond the ordinary rounds" in said


@pytest.mark.parametrize(
    "mods", [[], [message_size_mod, partial(arrays_size_mod)], [PermutationMod(), timed]]
)
def test_mods_that_are_known_to_add_no_noise(mods):
    assert not adds_noise(grid_of(mods))
    assert not adds_noise(grid_of([], mods))
