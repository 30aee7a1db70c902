"""The functions of a ClientApp are known without a message."""

import time
from threading import Thread

from flwr.clientapp import ClientApp
from flwr.supercore.object_ref import load_app

from cflower.messages.client_names import bundled_client_app

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
