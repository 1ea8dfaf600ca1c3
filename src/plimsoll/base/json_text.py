"""JSON for other programs: one object a line, which says the version of its schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 2
"""The next number when a key goes or changes its meaning; keys may be added at any time."""


def json_line(values: Mapping[str, Any]) -> str:
    """What `--json` prints of `values`."""
    return json.dumps({"schema": SCHEMA, **values})
