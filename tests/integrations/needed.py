"""Libraries that tests need; only `make test-integrations` installs them all."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip a test if one of them is missing, with a note."""
    missing = [name for name in packages if find_spec(name) is None]
    reason = f"needs {', '.join(missing)}: make test-integrations"
    return pytest.mark.skipif(bool(missing), reason=reason)
