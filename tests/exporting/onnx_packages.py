"""The tests that write ONNX files are skipped without the extra that they need."""

from importlib.util import find_spec

import pytest

from cflower.exporting.files import PACKAGES_FOR

MISSING = [name for name in PACKAGES_FOR["onnx"] if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(
    bool(MISSING), reason=f"the extra 'export' is not installed: {', '.join(MISSING)}"
)
