"""Which functions a ClientApp has is seen without asking it."""

import time
from pathlib import Path
from threading import Thread

import pytest
from flwr.clientapp import ClientApp
from flwr.supercore.object_ref import load_app

from cflower.messages.client_names import bundled_client_app

SLOW = "import time\ntime.sleep(0.5)\nfrom flwr.clientapp import ClientApp\napp = ClientApp()\n"


def test_an_app_that_another_thread_is_importing_is_found_whole_by_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_client_app.py").write_text(SLOW)
    reference = "[tool.flwr.app.components]\nclientapp = 'slow_client_app:app'\n"
    (tmp_path / "pyproject.toml").write_text(reference)
    monkeypatch.syspath_prepend(tmp_path)
    found: list[object] = []
    threads = [
        Thread(target=lambda: found.append(bundled_client_app())),
        Thread(target=lambda: found.append(load_app("slow_client_app:app", OSError, tmp_path))),
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.1)  # the second comes while the first is importing
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] is found[1]
    assert isinstance(found[0], ClientApp)
