"""Formats the comparison of a prediction with a recording as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.layout import paragraphs
from plimsoll.base.units import format_size, size_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.check_parts import CheckParts

_MOST_ROWS = 12


def check_text(check: CheckParts, width: int | None = None) -> str:
    """Returns the answer, the differences, and the reasons. Lines are folded at `width`, if any."""
    return paragraphs([_answer(check), _held(check), _reasons(check)], width)


def _answer(c: CheckParts) -> Iterator[str]:
    yield _compared("peak reserved", c.predicted_reserved_bytes, c.recorded_reserved_bytes)
    yield _compared("peak allocated", c.predicted_allocated_bytes, c.recorded_allocated_bytes)
    yield f"predicted requests {c.predicted_requests:,}, recorded {c.recorded_requests:,}"


def _compared(what: str, predicted: int, recorded: int) -> str:
    text = f"predicted {what} {format_size(predicted)}, recorded {format_size(recorded)}"
    if not recorded:
        return text
    percent = round(100 * (predicted - recorded) / recorded, 1) + 0.0  # no -0.0
    return f"{text} ({percent:+}%)"


def _held(c: CheckParts) -> Iterator[str]:
    if not c.held:
        what = "source line" if c.held_by == "line" else "size"
        yield f"At the peaks every {what} holds the same."
        return
    yield f"At the peaks, where they differ the most, by {c.held_by}:"
    yield f"  {'predicted':>12}  {'recorded':>12}  {'difference':>13}"
    for row in c.held[:_MOST_ROWS]:
        sign = "-" if row.difference_bytes < 0 else "+"
        difference = sign + format_size(abs(row.difference_bytes))
        rest = size_row(row.recorded_bytes, f"{difference:>13}  {row.what}")
        yield f"  {size_row(row.predicted_bytes, rest)}"
    if len(c.held) > _MOST_ROWS:
        yield f"  and {len(c.held) - _MOST_ROWS} more"


def _reasons(c: CheckParts) -> Iterator[str]:
    if c.reasons:
        yield "What is known of why:"
        yield from (f"  {reason}" for reason in c.reasons)
