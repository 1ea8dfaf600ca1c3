"""Skips tests whose libraries are missing; `make test-integrations` installs all of them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(*packages: str) -> pytest.MarkDecorator:
    """Returns a mark that skips a test if a package is missing.

    The reason of the skip names the missing packages.
    """
    missing = [name for name in packages if find_spec(name) is None]
    reason = f"needs {', '.join(missing)}: make test-integrations"
    return pytest.mark.skipif(bool(missing), reason=reason)
