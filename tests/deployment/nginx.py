"""The tests that need nginx are skipped without it."""

import pytest
from deployment.proxy import nginx

from cflower.errors import FederationError


def missing_nginx() -> str:
    """Why a federation cannot be started; "" if it can."""
    try:
        nginx()
    except FederationError as missing:
        return str(missing)
    return ""


needs_nginx = pytest.mark.skipif(bool(missing_nginx()), reason=missing_nginx())
