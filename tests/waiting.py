"""Waits until a condition holds. The time limit is long enough for a busy machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
PATIENCE_SECONDS = 120.0
"""A wait fails after this time, which is long enough for a busy machine."""


def wait_for(condition: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """Calls the condition until its result is true. Returns that result."""
    ends = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < ends, f"not so within {seconds} s"
        time.sleep(0.005)
    return found


def without_beats(text: str) -> str:
    """Returns a command's output without the progress lines of slow runs."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("plimsoll: after "))
