"""Makes the sentences without which a prediction's verdict would mislead."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from plimsoll.base.printable import printable
from plimsoll.base.units import format_count, format_size
from plimsoll.prediction.assumed import STARTED_PROGRAM
from plimsoll.prediction.little_room import doubt
from plimsoll.prediction.step_growth import growth_bytes, steady_from

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.prediction.parts import FewerSteps, PredictionParts, Stopped
    from plimsoll.prediction.trials.kept_apart import KeptApart

_MOST_PROGRAMS = 3


_SHOWN_STEPS = 4
"""The number of steps whose peaks are shown if memory use still changes."""


def caveats(p: PredictionParts) -> Iterator[str]:
    """Yields the sentences for all answers except the full report, which gives their details."""
    yield from caveats_of_run(p)
    if p.kept_apart is not None and p.kept_apart.refused:
        yield refused_text(p.kept_apart)


def caveats_of_run(p: PredictionParts) -> Iterator[str]:
    """Yields the sentences of `caveats`, except the one about refused writes.

    A fit reports the refused writes of the trial that has the most of them.
    """
    if p.stopped is not None:
        yield stopped_text(p.stopped)
    if is_in_pieces(p):
        yield PIECES
    if count := caught_requests(p):
        yield caught_text(count)
    if (growth := growth_bytes(p.step_peaks_bytes)) is not None:
        more = f"Memory grows each step by {format_size(growth)}"
        holds = f": the answer holds for {len(p.step_peaks_bytes)} steps, and no more"
        yield more if p.fits is False else more + holds
    elif is_unsteady(p):
        yield unsteady_text(p.step_peaks_bytes)
    if p.fewer_steps is not None:
        yield fewer_steps_text(p.fewer_steps)
    unseen = [each.operation for each in p.assumptions if each.what == STARTED_PROGRAM]
    if unseen:
        yield unseen_text(unseen)


def caveats_of_fit(p: PredictionParts) -> Iterator[str]:
    """Yields why it may not fit although it fits, if so, and the sentences of `caveats_of_run`."""
    if (why_not := doubt(p)) is not None:
        yield f"It may not fit: {why_not}."
    yield from caveats_of_run(p)


PIECES = "the card has enough free memory for the peak, but in pieces that are too small"


def is_in_pieces(p: PredictionParts) -> bool:
    """Returns whether the script fails although the card has enough free memory in all."""
    return p.fits is False and p.headroom_bytes >= 0 and p.serving is None


def stopped_text(stopped: Stopped) -> str:
    """Says where and why plimsoll stopped the script."""
    return (
        f"stopped at {stopped.line}: {stopped.why}; memory peaked at event "
        f"{stopped.steady_since_event} of {stopped.events}"
    )


def caught_requests(p: PredictionParts) -> int:
    """Returns the number of failed requests after which the script went on.

    If a script with several processes does not fit, a failed request may have ended one of its
    processes, so the count is 0.
    """
    caught = p.num_ooms - (p.out_of_memory is not None)
    return 0 if p.fits is False and (p.processes or p.ranks) else max(0, caught)


def caught_text(count: int) -> str:
    """Says that requests failed."""
    return f"requests that failed, after which the script went on: {count}"


def is_unsteady(p: PredictionParts) -> bool:
    """Returns whether memory use still changed in the last steps."""
    peaks = p.step_peaks_bytes
    return len(peaks) > 1 and steady_from(peaks) is None


def unsteady_text(step_peaks_bytes: Sequence[int]) -> str:
    """Says that memory use still changed in the last steps."""
    shown = [*map(format_size, step_peaks_bytes)]
    last = shown[-_SHOWN_STEPS:]
    if len(set(last)) > 1:
        return f"Memory use still changes: the last steps peaked at {', '.join(last)}."
    # Equal texts show no change, so the sentence says each difference, or the last change before.
    changes = [after - before for before, after in pairwise(step_peaks_bytes[-_SHOWN_STEPS:])]
    if any(changes):
        more = [f"{format_size(abs(by))} {'more' if by >= 0 else 'less'}" for by in changes]
        return (
            f"Memory use still changes: of the last steps one peaked at {last[0]}, and each later "
            f"one at {', '.join(more)}."
        )
    step = max((i for i in range(1, len(shown)) if shown[i] != shown[i - 1]), default=0)
    if not step:
        return f"Memory use still changes: the last steps peaked at about {last[0]}."
    return (
        f"Memory use still changed in step {step + 1} of {len(shown)}: its peak was "
        f"{shown[step]}, after {shown[step - 1]}."
    )


def fewer_steps_text(fewer: FewerSteps) -> str:
    """Says which steps were left out because of `--steps`, or that none were."""
    if not fewer.has_ended:
        return (
            f"--steps {fewer.at_most} ended no training loop: the steps are neither in a Trainer "
            "of transformers nor in a `for` over a DataLoader."
        )
    of = "" if fewer.planned is None else f" of about {fewer.planned:,}"
    return (
        f"--steps {fewer.at_most} ended the training loop: {fewer.made:,}{of} steps were made, and "
        "the rest of the script ran. Memory that only later steps take is not counted."
    )


def unseen_text(programs: Sequence[str]) -> str:
    """Says that plimsoll did not see programs that the script started."""
    more = len(programs) - _MOST_PROGRAMS
    named = ", ".join(programs[:_MOST_PROGRAMS]) + (f" and {more} more" if more > 0 else "")
    return printable(
        f"plimsoll does not see the Python programs that the script started: {named}; predict each "
        "of them by itself"
    )


def refused_text(kept_apart: KeptApart) -> str:
    """Says that writes of the script failed because plimsoll could not redirect them."""
    count = format_count(sum(one.count for one in kept_apart.refused), "write")
    return (
        f"plimsoll refused {count}, which it cannot discard on this machine (--keep-writes allows "
        "them)"
    )
