"""Formats fits as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.layout import paragraphs
from plimsoll.base.units import format_seconds, format_size
from plimsoll.prediction.job_text import rate_text
from plimsoll.prediction.little_room import thin_line
from plimsoll.prediction.parts import INTERRUPTED
from plimsoll.prediction.text import kept_apart_lines, written_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.fitting.parts import FitParts, Trial


_UNKNOWN = "not known"
_MAY_NOT_FIT = "It may not fit: "
"""The beginning of the caveat that says why a value with `Trial.may_not_fit` may not fit."""
_DOUBTFUL = "may fit"
"""The verdict on a value if it is unknown whether the value fits (see `Trial.fits`)."""


def fit_text(fit: FitParts, width: int | None = None) -> str:
    """Returns a fit as text: the largest value, and a table of all tried values.

    Args:
        fit: The result.
        width: The number of columns; None does not fold lines.
    """
    rows = [
        f"{fit.gpu}: {answer_text(fit)}",
        *_conditions(fit),
        *_thin(fit),
        *_caveats(fit),
        *_table(fit),
    ]
    for trial in fit.curve:
        if trial.value == fit.largest and trial.host_peak_bytes is not None:
            about = f"about {format_size(trial.host_peak_bytes)} of host memory"
            rows.append(f"With {fit.vary} {fit.largest}, the script uses {about}")
    if fit.fastest is not None:
        value, rate = fit.fastest
        rows.append(
            f"{fit.vary} {value} is about as fast as any value that was tried: "
            f"{rate_text(rate, fit.world_size)}"
        )
    rest = [written_lines(fit.written), kept_apart_lines(fit.kept_apart)]
    return paragraphs([rows, *rest], width)


def trial_text(trial: Trial, total_bytes: int) -> str:
    """Formats one trial as a line.

    Args:
        trial: The trial.
        total_bytes: The card's memory.
    """
    if trial.error is not None:
        return f"the script fails: {trial.error}"
    parts = [_verdict(trial)]
    if trial.headroom_bytes is not None and trial.device_used_bytes is not None:
        used = _used(trial, total_bytes)
        parts.append(used if used.startswith(">") else f"{used} of {format_size(total_bytes)}")
    if trial.why_unknown is not None:
        parts.append(trial.why_unknown)
    if trial.step_seconds is not None:
        parts.append(f"about {format_seconds(trial.step_seconds)} a step")
    return ", ".join(parts)


def answer_text(fit: FitParts) -> str:
    """Returns the largest value in words, with the nearest values that may fit or do not fit."""
    low, high, doubtful = fit.largest, fit.smallest_failing, fit.may_fit
    if low is None:
        if doubtful is not None:
            return f"no {fit.vary} that fits for certain was found; {_may_fit(fit)}"
        if fit.stopped is None:
            return f"not even {fit.vary} {high} fits"
        below = "" if high is None else f" below {high}"
        return f"no {fit.vary}{below} that fits was found: {fit.stopped}"
    if doubtful is not None:
        ended = "" if fit.stopped is None else f": {fit.stopped}"
        return f"{fit.vary} at least {low}, which fits for certain; {_may_fit(fit)}{ended}"
    if fit.stopped is None:
        assert high is not None
        near = "" if high - low <= fit.multiple_of else f"; {high}, within 1% of it, does not fit"
        return f"{fit.vary} {low}{near}"
    if fit.stopped == INTERRUPTED:
        below = "" if high is None else f", less than {high}"
        return f"{fit.vary} at least {low}{below}: interrupted"
    if high is not None and all(trial.error is None for trial in fit.curve if trial.value == high):
        return f"{fit.vary} between {low}, which fits, and {high}, which does not: {fit.stopped}"
    return f"{fit.vary} at least {low}; not searched further: {fit.stopped}"


def _may_fit(fit: FitParts) -> str:
    high = fit.smallest_failing
    if high is None:
        return f"{fit.may_fit} or more may fit"
    fails = any(trial.value == high and trial.error is not None for trial in fit.curve)
    above = f"with {high} the script fails" if fails else f"{high} does not fit"
    return f"{fit.may_fit} may fit, and {above}"


def _thin(fit: FitParts) -> Iterator[str]:
    """Yields a warning if the largest value leaves so little free that another run may not fit."""
    for trial in fit.curve:
        if trial.value == fit.largest and trial.headroom_bytes is not None:
            yield from thin_line(trial.headroom_bytes, fit.total_bytes, of="the card")


def _caveats(fit: FitParts) -> Iterator[str]:
    """Yields the caveats of the largest value that fits.

    If no value fits, yields those of the least tried value.
    """
    shown = [trial for trial in fit.curve if fit.largest in (None, trial.value)]
    for trial in shown[:1]:
        yield from (f"  {fit.vary} {trial.value}: {line}" for line in trial.caveats)


def _conditions(fit: FitParts) -> Iterator[str]:
    """Yields lines with the memory that other programs use, the headroom, and `multiple_of`."""
    whole = format_size(fit.total_bytes + fit.used_bytes)
    of_card = []
    if fit.used_bytes:
        of_card.append(f"{format_size(fit.used_bytes)} of it used by others")
    if fit.headroom_bytes:
        of_card.append(f"{format_size(fit.headroom_bytes)} to stay free")
    if of_card:
        yield f"  of {whole}, {', '.join(of_card)}"
    if fit.multiple_of > 1:
        yield f"  in multiples of {fit.multiple_of}"


def _table(fit: FitParts) -> Iterator[str]:
    width = max(8, len(fit.vary))
    failing = fit.smallest_failing
    if any(trial.value == failing and trial.error is not None for trial in fit.curve):
        failing = None  # no trial has shown that this value takes too much memory
    notes = []
    yield f"  {fit.vary:>{width}}  {'on the card':>12}  {'step, about':>11}"
    for trial in fit.curve:
        used, verdict = _used(trial, fit.total_bytes), _verdict(trial, failing)
        seconds = "not timed" if trial.step_seconds is None else format_seconds(trial.step_seconds)
        yield f"  {trial.value:>{width}}  {used:>12}  {seconds:>11}  {verdict}"
        if why := _why(trial, verdict, fit.total_bytes):
            notes.append(f"  {fit.vary} {trial.value}: {verdict}: {why}")
    yield from notes


def _why(trial: Trial, verdict: str, total_bytes: int) -> str:
    """Returns why it is not certain whether the value fits, with the figures that decide it.

    For a value that does not fit, returns the allocators and settings that would make it fit.
    """
    if trial.why_unknown is not None:
        return trial.why_unknown
    if trial.may_not_fit:
        doubts = (line for line in trial.caveats if line.startswith(_MAY_NOT_FIT))
        return next(doubts, "").removeprefix(_MAY_NOT_FIT).removesuffix(".")
    if trial.fits_with and not trial.fits:
        return _with_other_allocators(trial)
    if verdict == _DOUBTFUL and (trial.headroom_bytes or 0) < 0:
        takes = format_size(trial.device_used_bytes or 0)
        return (
            f"without a limit it takes {takes}, more than the card's {format_size(total_bytes)}, "
            "but a part of that is cached memory, which PyTorch frees when it has to"
        )
    return ""


def _with_other_allocators(trial: Trial) -> str:
    """Says that only fragments are too much, and under which allocators and settings it fits."""
    ways = [f"{need.way} ({format_size(need.card_bytes)})" for need in trial.fits_with]
    confs = [need.conf for need in trial.fits_with if need.conf]
    search = f"; --conf {confs[0]} searches under that setting" if confs else ""
    return (
        "what is live fits, and only free memory in pieces is too much; it "
        f"fits with {' or '.join(ways)}{search}"
    )


def _used(trial: Trial, total_bytes: int) -> str:
    """Returns a trial's memory of the card, such as "6.55 GiB"; ">8.00 GiB" if that is too much.

    A run with unlimited memory may take more than the card has. That is no figure of a run on the
    card, which would return cached memory or fail.
    """
    if trial.error is not None or trial.device_used_bytes is None:
        return "not known"
    is_beyond = trial.device_used_bytes > total_bytes
    if is_beyond or (trial.headroom_bytes is None and trial.why_unknown is None):
        return f">{format_size(total_bytes)}"
    return format_size(trial.device_used_bytes)


def _verdict(trial: Trial, failing: int | None = None) -> str:
    """Returns the result of a trial in words.

    `failing` is a value that does not fit. No larger value fits either, even if the larger value's
    own trial does not show it.
    """
    if trial.error is not None:
        return "the script fails"
    if trial.why_unknown is not None:
        return _UNKNOWN
    if trial.fits is None:
        is_above = failing is not None and trial.value > failing
        return f"does not fit, as {failing} does not" if is_above else _DOUBTFUL
    if trial.fits:
        return "may not fit" if trial.may_not_fit else "fits"
    leaves = trial.headroom_bytes is not None and trial.headroom_bytes >= 0
    return "leaves too little" if leaves else "does not fit"
