import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def _identity():
    """Flower's Message constructor asks which task it runs in."""
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
