import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    """Flower's Message constructor asks which task it runs in."""
    for name in ("task_id", "run_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)
