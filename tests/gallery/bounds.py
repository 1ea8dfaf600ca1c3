"""How close a prediction has to be to what the card took, and which scripts are known to differ."""

from __future__ import annotations

from dataclasses import dataclass

from tests.gallery.figures import Figures
from tests.gallery.results import short


@dataclass(frozen=True)
class Bounds:
    """The largest differences, as parts of what was measured.

    Attributes:
        allocated: Of peak allocated.
        reserved: Of peak reserved.
        why: Why they are others than `CLOSE`.
    """

    allocated: float
    reserved: float
    why: str = ""


CLOSE = Bounds(allocated=0.005, reserved=0.015)
OTHER_VERSION = Bounds(
    allocated=0.01,
    reserved=0.05,
    why="another PyTorch than the measured one: it picks another of several equally large free"
    " blocks, and has other workspaces (docs/versions.md)",
)
KNOWN: dict[str, Bounds] = {}
"""Scripts that differ by more under the very PyTorch that was measured, and why."""


def bounds_of(name: str, torch: str, measured_torch: str) -> Bounds:
    """What a prediction under one PyTorch is held to, measured with another or the same."""
    usual = CLOSE if short(torch) == short(measured_torch) else OTHER_VERSION
    known = KNOWN.get(name)
    if known is None:
        return usual
    reserved = max(usual.reserved, known.reserved)
    return Bounds(max(usual.allocated, known.allocated), reserved, known.why)


def holds(found: Figures, measured: Figures, bounds: Bounds = CLOSE) -> bool:
    """Whether both peaks are within the bounds, or within their range where sizes hang on data."""
    pairs = (
        (found.allocated_bytes, found.allocated_range, measured.allocated_bytes, bounds.allocated),
        (found.reserved_bytes, found.reserved_range, measured.reserved_bytes, bounds.reserved),
    )
    return all(
        abs(value - truth) <= bound * truth or (span is not None and span[0] <= truth <= span[1])
        for value, span, truth, bound in pairs
    )
