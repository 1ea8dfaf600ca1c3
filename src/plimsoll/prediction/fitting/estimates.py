"""Where memory will be spent, by what other values leave of it."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_APART = 1.04
"""Values closer than this show how requests happen to lie in memory, not how it grows."""

Sample = tuple[float, float]
"""A value, and the bytes that it leaves free: less than none, where it takes too much."""


def crossing(samples: Sequence[Sample]) -> float | None:
    """The value that leaves nothing free, by the samples around it; None where none does.

    It lies on a parabola through three samples, or, where that never falls so far, or there are but
    two, on a line.
    """
    chosen = _nearest(samples)
    if len(chosen) < 2:
        return None
    curved = _on_parabola(*chosen) if len(chosen) > 2 else None
    return _on_line(*chosen[:2]) if curved is None else curved


def _nearest(samples: Sequence[Sample]) -> list[Sample]:
    """Up to three that leave the least, or lack the least, and are far enough from each other."""
    kept: list[Sample] = []
    for value, free in sorted(samples, key=lambda sample: abs(sample[1])):
        if all(max(value, other) >= _APART * min(value, other) for other, _ in kept):
            kept.append((value, free))
    return kept[:3]


def _on_line(first: Sample, other: Sample) -> float | None:
    slope = (other[1] - first[1]) / (other[0] - first[0])
    return None if slope >= 0 else first[0] - first[1] / slope


def _on_parabola(first: Sample, second: Sample, third: Sample) -> float | None:
    """By the first one, which is the nearest."""
    to_second = (second[1] - first[1]) / (second[0] - first[0])
    to_third = (third[1] - first[1]) / (third[0] - first[0])
    bend = (to_third - to_second) / (third[0] - second[0])
    slope = to_second + bend * (first[0] - second[0])
    inside = slope * slope - 4 * bend * first[1]
    if slope >= 0 or inside < 0:
        return None
    return first[0] + 2 * first[1] / (sqrt(inside) - slope)
