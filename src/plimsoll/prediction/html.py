"""Formats a prediction as HTML for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.notebook_form import answer, folded, size_table, table
from plimsoll.base.units import format_seconds, format_size
from plimsoll.prediction.need_text import needed_bytes
from plimsoll.prediction.text import memory_text, prediction_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.parts import PredictionParts

_MOST_LINES = 8


def prediction_html(prediction: PredictionParts) -> str:
    """Returns the verdict, the figures, and a table of the peak by category, as HTML."""
    text = prediction_text(prediction)
    first = answer(text.splitlines()[0])
    if not prediction.uses_cuda:
        return first
    whole = prediction.peak_allocated_bytes
    categories = sorted(prediction.by_category.items(), key=lambda item: -item[1])
    lines = [(line.line, line.bytes) for line in prediction.top_lines[:_MOST_LINES]]
    return "".join(
        [
            first,
            table("", _figures(prediction)),
            size_table("At the peak", categories, whole),
            size_table("Lines that hold the most at the peak", lines, whole),
            folded("All of it", text),
        ]
    )


def _figures(p: PredictionParts) -> Iterator[tuple[str, str]]:
    yield "peak allocated", format_size(p.peak_allocated_bytes)
    yield "peak reserved", format_size(p.peak_reserved_bytes)
    shown = "would need" if p.fits is False else "nvidia-smi shows"
    yield shown, f"{format_size(needed_bytes(p))} of {memory_text(p)}"
    if p.host_peak_bytes is not None:
        yield "host memory, estimated", format_size(p.host_peak_bytes)
    if p.step is not None:
        yield f"a {p.step.what}, about", format_seconds(p.step.seconds)
