"""JSON for other programs: one object a line, with the version of its schema."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 2
"""Raised by one when a key is removed or changes its meaning; new keys keep the number."""


def json_line(values: Mapping[str, Any]) -> str:
    """Returns the line that `--json` prints; NaN and infinities become null."""
    return json.dumps(_with_finite_numbers({"schema": SCHEMA, **values}), allow_nan=False)


def _with_finite_numbers(value: Any) -> Any:
    """Returns the value with None for NaN and infinities, which JSON cannot express."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _with_finite_numbers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_finite_numbers(each) for each in value]
    return value
