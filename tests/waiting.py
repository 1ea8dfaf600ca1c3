"""Waiting for what will be so sooner or later, on a machine however busy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
PATIENCE_SECONDS = 120.0
"""For what a busy machine does sooner or later."""


def wait_for(condition: Callable[[], T], seconds: float = PATIENCE_SECONDS) -> T:
    """Ask again and again until the answer counts as true; the answer."""
    ends = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < ends, f"not so within {seconds} s"
        time.sleep(0.005)
    return found


def without_beats(text: str) -> str:
    """What a command says, but for where it is, which it says now and then if it takes long."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("plimsoll: after "))
