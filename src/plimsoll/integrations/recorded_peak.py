"""What a recorded piece of a program, such as a cell or a test, held at its peak, and where."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plimsoll.analysis import NO_LINE, LineShare, find_lifetimes
from plimsoll.explanation import explain
from plimsoll.recordings import read_recording

if TYPE_CHECKING:
    from os import PathLike


@dataclass(frozen=True)
class RecordedPeak:
    """The GPU of a process that held the most, at the moment when it did.

    Attributes:
        device: The GPU, as PyTorch counts.
        allocated_bytes: In live blocks then, as `torch.cuda.max_memory_allocated` has it.
        before_bytes: Of it, what was there before the recording began.
        by_category: All of it, by what it is for.
        lines: The lines that hold the rest, most first.
    """

    device: int
    allocated_bytes: int
    before_bytes: int
    by_category: dict[str, int]
    lines: list[LineShare]


def recorded_peak(path: str | PathLike[str]) -> RecordedPeak:
    """Find the peak of a recording.

    Raises:
        InputError: If it cannot be read, or nothing has happened in it.
    """
    recording = read_recording(path)
    found = explain(recording, advice=False)
    (trace,) = (trace for trace in recording.devices if trace.device == found.device)
    lifetimes = find_lifetimes(trace)
    live = lifetimes.live_at(found.peak.event)
    sizes = lifetimes.size[live[lifetimes.start[live] < 0]]
    before = LineShare(NO_LINE, int(sizes.sum()), len(sizes))
    lines = [_without(line, before) for line in found.peak.lines]
    return RecordedPeak(
        found.device,
        found.peak.allocated_bytes,
        before.bytes,
        found.peak.by_category,
        sorted((line for line in lines if line.blocks), key=lambda line: -line.bytes),
    )


def _without(line: LineShare, before: LineShare) -> LineShare:
    """What was there before has no line; who asked for it was not recorded."""
    if line.line != before.line:
        return line
    return replace(line, bytes=line.bytes - before.bytes, blocks=line.blocks - before.blocks)
