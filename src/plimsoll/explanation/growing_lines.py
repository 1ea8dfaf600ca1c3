"""Gives a running program advice on its source lines whose memory grows.

The advice comes from recognisers, functions that each find one cause in a recording; nothing is
replayed. Errors of a recogniser are suppressed, so that they never stop the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.explanation.state import recorded_failures
from plimsoll.recordings.analysis.categories import find_categories
from plimsoll.recordings.analysis.lines import source_lines, users_part
from plimsoll.recordings.causes.cause import Facts, Reserved
from plimsoll.recordings.causes.kept_over_passes import (
    NO_GRAD,
    blocks_of_earlier_passes,
    cause_of_leak,
)
from plimsoll.recordings.causes.wording import subject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.recordings.analysis.leaks import Leak
    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.causes.cause import Cause
    from plimsoll.recordings.recording import DeviceTrace, Recording

_LET_GO = "Keep numbers (.item()), or copies in host memory (.detach().cpu())"


def changes_that_help(
    recording: Recording,
    trace: DeviceTrace,
    blocks: Lifetimes,
    steps: Steps,
    leaks: Sequence[Leak],
) -> list[str]:
    """Returns a sentence of advice for each leak, without the full stop.

    If no recogniser finds a cause, for example in a short recording, the advice is general.

    Args:
        recording: The program so far.
        trace: Its events on one device.
        blocks: The device's blocks.
        steps: The program's steps.
        leaks: The growing lines.
    """
    try:
        facts = _facts(recording, trace, blocks, steps)
        kept = blocks_of_earlier_passes(facts, leaks, steps)
        return [_helps(leak, cause_of_leak(facts, leak, leaks, steps, kept)) for leak in leaks]
    except Exception:  # no error here may stop the watched program
        return [_LET_GO] * len(leaks)


def _facts(recording: Recording, trace: DeviceTrace, blocks: Lifetimes, steps: Steps) -> Facts:
    labels, failures = recording.labels_of(trace.device), recorded_failures(trace)
    line, lines = source_lines(blocks.stack, trace.frames)
    return Facts(
        device=trace.device,
        blocks=blocks,
        category=find_categories(blocks, steps, trace.frames, failures, labels).number,
        line=line,
        lines=lines,
        frames=trace.frames,
        steps=steps,
        event=max(0, blocks.event_count - 1),
        reserved=Reserved(0, 0),
    )


def _helps(leak: Leak, cause: Cause) -> str:
    where = f" at {subject(cause.line)}" if cause.line else ""
    is_same = users_part(leak.what) in (cause.line, users_part(cause.line or ""))
    change = cause.change if is_same else cause.change.replace(" there", where)
    # The advice of no_grad already names its patch; some advice has none.
    return f"What may help: {change}" + ("" if cause.patch in ("", NO_GRAD) else f": {cause.patch}")
