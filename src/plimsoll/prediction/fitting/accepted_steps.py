"""Which multiples a script accepts, found from a value with which it fails."""

from __future__ import annotations

import re
from math import gcd, lcm
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_DIVISOR = re.compile(r"\b(?:divisible by|multiples? of)\D{0,40}?(\d+)", re.IGNORECASE)
_LINE = re.compile(r" \([^()]*:\d+[^()]*\)$")  # that raised it, at the end of the reason


def accepted_step(
    reason: str | None, failed: int, accepted: Collection[int], *, step: int, tolerance: int
) -> int | None:
    """The step that a script seems to demand; None if no step explains that a value failed.

    Args:
        reason: The script's error, as in a `ScriptError`.
        failed: The value that failed.
        accepted: Values with which the script did not fail so.
        step: The step that is demanded already.
        tolerance: Differences up to this do not matter.

    Returns:
        A multiple of `step` that divides all accepted values and not the failed one. It is the
        number that the script names, or else `step` times a power of two: the largest one up to the
        tolerance, or the smallest one if all are above.
    """
    for found in _DIVISOR.findall(_LINE.sub("", reason or "")):
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
