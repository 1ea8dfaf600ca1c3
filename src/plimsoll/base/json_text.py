"""Makes lines of JSON for other programs. Each line is an object; `schema` is its first key."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 2
"""The schema's version. It rises if a key is removed or changes meaning, not if one is added."""


def json_line(values: Mapping[str, Any]) -> str:
    """Returns the line that `--json` prints; NaN and infinities become null."""
    return json.dumps(_with_finite_numbers({"schema": SCHEMA, **values}), allow_nan=False)


def _with_finite_numbers(value: Any) -> Any:
    """Returns the value with each NaN and infinity replaced by None: JSON has neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _with_finite_numbers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_finite_numbers(each) for each in value]
    return value
