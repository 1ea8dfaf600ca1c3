"""JSON for other programs: one object a line, which says the version of its schema."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 2
"""The next number when a key goes or changes its meaning; keys may be added at any time."""


def json_line(values: Mapping[str, Any]) -> str:
    """Returns the line that `--json` prints; a number that JSON does not have is null."""
    return json.dumps(_with_finite_numbers({"schema": SCHEMA, **values}), allow_nan=False)


def _with_finite_numbers(value: Any) -> Any:
    """The same value, with None for NaN and for an infinity, which JSON has no words for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _with_finite_numbers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_finite_numbers(each) for each in value]
    return value
