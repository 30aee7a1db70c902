from tests.runs.conftest import made_up  # noqa: F401
