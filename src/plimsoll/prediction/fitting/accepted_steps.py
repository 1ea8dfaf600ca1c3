"""Finds the number whose multiples a script accepts, such as 8 for a batch of 8, 16, 24, ….

Takes a value with which the script fails, and infers from it what the script demands.
"""

from __future__ import annotations

import re
from math import gcd, lcm
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_DIVISOR = re.compile(r"\b(?:divisible by|multiples? of)\D{0,40}?(\d+)", re.IGNORECASE)
_LINE = re.compile(r" \([^()]*:\d+[^()]*\)$")  # the line of the error, at the end of the reason


def accepted_step(
    reason: str | None, failed: int, accepted: Collection[int], *, step: int, tolerance: int
) -> int | None:
    """Returns the step that a script seems to demand; None if no step explains the failure.

    Args:
        reason: The script's error, as in a `ScriptError`.
        failed: The value that failed.
        accepted: Values that the script accepted.
        step: The step demanded so far.
        tolerance: A step above `tolerance` is guessed only if no step up to `tolerance` explains
            the failure.

    Returns:
        A multiple of `step` that divides all accepted values but not the failed one. If the
        script's error names a divisor, plimsoll first tries the least common multiple of `step` and
        this divisor. Then it tries `step` times each power of two. It prefers the largest of these
        that is at most `tolerance`. If there is none, it takes the smallest.
    """
    for found in _DIVISOR.findall(without_line(reason or "")):
        named = lcm(step, int(found) or 1)
        if failed % named and not any(value % named for value in accepted):
            return named
    common = gcd(*accepted)
    if common == 0 or common % step:
        return None
    powers = [step]
    while common % (2 * powers[-1]) == 0:
        powers.append(2 * powers[-1])
    explaining = [power for power in powers if failed % power]
    return max((power for power in explaining if power <= tolerance), default=None) or min(
        explaining, default=None
    )


def without_line(reason: str) -> str:
    """Returns an error's text without the script's line at its end.

    Otherwise `accepted_step` could mistake the line's number for a divisor.
    """
    return _LINE.sub("", reason)
