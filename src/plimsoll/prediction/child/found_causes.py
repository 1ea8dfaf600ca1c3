"""Finds the causes of a simulated run's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.recordings.analysis.lines import source_lines
from plimsoll.recordings.causes.cause import Facts
from plimsoll.recordings.causes.recognisers import find_causes
from plimsoll.recordings.causes.reserved_peak import reserved_peak
from plimsoll.recordings.events import Action

if TYPE_CHECKING:
    from plimsoll.base.watchers import Watchers
    from plimsoll.prediction.child.peak_contents import PeakContents, Run
    from plimsoll.recordings.causes.cause import Cause, Notes


def causes_of(
    run: Run,
    peak: PeakContents,
    device: int,
    notes: Notes,
    watchers: Watchers,
    *,
    room_bytes: int | None,
) -> list[Cause]:
    """Finds the causes of one device's memory, the best explanation of the figures first.

    `room_bytes` is the most that the allocator could reserve on the card; None if unknown.
    """
    facts = facts_of(run, peak, device, notes, room_bytes)
    return find_causes(facts, watchers.guarded)


def facts_of(
    run: Run, peak: PeakContents, device: int, notes: Notes, room_bytes: int | None = None
) -> Facts:
    """Returns the facts about one device from which causes are recognised."""
    line, lines = source_lines(peak.blocks.stack, run.frames)
    return Facts(
        device=device,
        blocks=peak.blocks,
        category=peak.category,
        line=line,
        lines=lines,
        frames=run.frames,
        steps=peak.steps,
        event=peak.event,
        reserved=reserved_peak(run.action, run.size, run.stream, peak.blocks, peak.rounded),
        notes=notes,
        failed=bool((run.action == Action.OOM).any()),
        room_bytes=room_bytes,
    )
