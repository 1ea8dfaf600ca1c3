"""Estimates the value at which memory runs out, from the memory left by other values."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_APART = 1.04
"""Closer values differ by chance placement of requests, not by the growth of memory."""

Sample = tuple[float, float]
"""A value, and the bytes that it leaves free; negative if it needs too much."""


def crossing(samples: Sequence[Sample]) -> float | None:
    """Returns the value that leaves no byte free, from nearby samples; None if there is none.

    It lies on a parabola through three samples, or on a line if the parabola does not reach zero or
    there are only two samples.
    """
    chosen = _nearest(samples)
    if len(chosen) < 2:
        return None
    curved = _on_parabola(*chosen) if len(chosen) > 2 else None
    return _on_line(*chosen[:2]) if curved is None else curved


def _nearest(samples: Sequence[Sample]) -> list[Sample]:
    """Returns up to three samples nearest to zero that are far enough apart."""
    kept: list[Sample] = []
    for value, free in sorted(samples, key=lambda sample: abs(sample[1])):
        if all(max(value, other) >= _APART * min(value, other) for other, _ in kept):
            kept.append((value, free))
    return kept[:3]


def _on_line(first: Sample, other: Sample) -> float | None:
    slope = (other[1] - first[1]) / (other[0] - first[0])
    return None if slope >= 0 else first[0] - first[1] / slope


def _on_parabola(first: Sample, second: Sample, third: Sample) -> float | None:
    """Returns the parabola's root next to the first sample, which is the nearest."""
    to_second = (second[1] - first[1]) / (second[0] - first[0])
    to_third = (third[1] - first[1]) / (third[0] - first[0])
    bend = (to_third - to_second) / (third[0] - second[0])
    slope = to_second + bend * (first[0] - second[0])
    inside = slope * slope - 4 * bend * first[1]
    if slope >= 0 or inside < 0:
        return None
    return first[0] + 2 * first[1] / (sqrt(inside) - slope)
