"""Finds the causes of a simulated run's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.recordings.analysis.lines import source_lines
from plimsoll.recordings.causes.cause import Facts
from plimsoll.recordings.causes.recognisers import find_causes
from plimsoll.recordings.causes.reserved_peak import reserved_peak

if TYPE_CHECKING:
    from plimsoll.base.watchers import Watchers
    from plimsoll.prediction.child.peak_contents import PeakContents, Run
    from plimsoll.recordings.causes.cause import Cause, Notes


def causes_of(
    run: Run, peak: PeakContents, device: int, notes: Notes, watchers: Watchers
) -> list[Cause]:
    """Finds the causes of one device's memory, the best explanation of the figures first."""
    return find_causes(facts_of(run, peak, device, notes), watchers.guarded)


def facts_of(run: Run, peak: PeakContents, device: int, notes: Notes) -> Facts:
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
    )
