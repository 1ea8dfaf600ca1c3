"""Finds the lines that are being executed in the script itself, leaving out those of libraries."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from plimsoll.prediction.survey import Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


def script_frames() -> Iterator[FrameType]:
    """Yields the running frames of the script, the innermost first."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == script:
            yield frame
        frame = frame.f_back


def place_of(frame: FrameType) -> Place:
    """Returns the line that a frame is executing, and its function."""
    return Place(frame.f_lineno, frame.f_code.co_qualname)


def innermost_place() -> Place | None:
    """Returns the script's innermost line that is being executed; None if there is none."""
    return next(map(place_of, script_frames()), None)
