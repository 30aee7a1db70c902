from tests.messages.conftest import _identity  # noqa: F401
