"""Estimates the value of an argument with which a script just uses up the memory.

The estimate follows from the bytes that stay free with other values of the argument.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_APART = 1.04
"""Only values at least this factor apart are compared.

Between closer values, the placement of blocks changes memory more than the values do.
"""

Sample = tuple[float, float]
"""A value, and the bytes that stay free with it; negative if memory is missing."""


def crossing(samples: Sequence[Sample]) -> float | None:
    """Estimates the value with which no byte stays free; None if the samples do not determine it.

    The estimate is the root of a parabola through the three samples whose free bytes are nearest to
    zero. If there are only two samples, or the parabola has no root, a line takes its place.
    """
    chosen = _nearest(samples)
    if len(chosen) < 2:
        return None
    curved = _on_parabola(*chosen) if len(chosen) > 2 else None
    return _on_line(*chosen[:2]) if curved is None else curved


def _nearest(samples: Sequence[Sample]) -> list[Sample]:
    """Returns up to three samples, far enough apart, whose free bytes are nearest to zero."""
    kept: list[Sample] = []
    for value, free in sorted(samples, key=lambda sample: abs(sample[1])):
        if all(max(value, other) >= _APART * min(value, other) for other, _ in kept):
            kept.append((value, free))
    return kept[:3]


def _on_line(first: Sample, other: Sample) -> float | None:
    slope = (other[1] - first[1]) / (other[0] - first[0])
    return None if slope >= 0 else first[0] - first[1] / slope


def _on_parabola(first: Sample, second: Sample, third: Sample) -> float | None:
    """Returns the parabola's root nearest to `first`; None if it has no root or rises there."""
    to_second = (second[1] - first[1]) / (second[0] - first[0])
    to_third = (third[1] - first[1]) / (third[0] - first[0])
    bend = (to_third - to_second) / (third[0] - second[0])
    slope = to_second + bend * (first[0] - second[0])
    inside = slope * slope - 4 * bend * first[1]
    if slope >= 0 or inside < 0:
        return None
    return first[0] + 2 * first[1] / (sqrt(inside) - slope)
