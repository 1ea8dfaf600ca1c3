"""Fits in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.prediction.text import paragraphs, written_lines
from plimsoll.units import format_seconds, format_size

if TYPE_CHECKING:
    from plimsoll.fitting.parts import FitParts


def fit_text(fit: FitParts) -> str:
    """The largest value, and a table of all that were tried."""
    if fit.largest is None:
        first = f"{fit.gpu}: not even {fit.vary} 1 fits"
    elif fit.stopped is None:
        first = f"{fit.gpu}: {fit.vary} {fit.largest}"
    else:
        first = f"{fit.gpu}: {fit.vary} at least {fit.largest}; not searched further: {fit.stopped}"
    width = max(8, len(fit.vary))
    rows = [f"  {fit.vary:>{width}}  {'on the card':>12}  {'step, about':>11}"]
    for trial in fit.curve:
        used = format_size(trial.device_used_bytes) if trial.fits else "-"
        seconds = "-" if trial.step_seconds is None else format_seconds(trial.step_seconds)
        verdict = "fits" if trial.fits else "does not fit"
        rows.append(f"  {trial.value:>{width}}  {used:>12}  {seconds:>11}  {verdict}")
    for trial in fit.curve:
        if trial.value == fit.largest and trial.host_peak_bytes is not None:
            size = format_size(trial.host_peak_bytes)
            rows.append(f"Host memory, estimated, with {fit.vary} {fit.largest}: {size}")
    if fit.fastest is not None:
        value, rate = fit.fastest
        rows.append(f"The most samples a second, about {rate:,.0f}: {fit.vary} {value}")
    return paragraphs([[first, *rows], written_lines(fit.written)])
