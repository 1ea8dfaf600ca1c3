"""What a recorded piece of a program, such as a cell or a test, held at its peak, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.explanation.explain import explain
from plimsoll.recordings.analysis.block_history import find_lifetimes
from plimsoll.recordings.reading import read_recording

if TYPE_CHECKING:
    from os import PathLike

    from plimsoll.recordings.analysis.lines import LineShare


@dataclass(frozen=True)
class RecordedPeak:
    """The GPU of a process that held the most, at the moment when it did.

    Attributes:
        device: The GPU, as PyTorch counts.
        allocated_bytes: In live blocks then, as `torch.cuda.max_memory_allocated` has it.
        before_bytes: Of it, what was there before the recording began.
        by_category: All of it, by what it is for.
        lines: The lines that hold it, most first; of what was there before, only some are known.
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
    fullest = max(found.devices, key=lambda use: use.peak_allocated_bytes or 0).device
    if fullest != found.device:  # where requests failed, that device is explained first
        found = explain(recording, device=fullest, advice=False)
    (trace,) = (trace for trace in recording.devices if trace.device == found.device)
    lifetimes = find_lifetimes(trace)
    live = lifetimes.live_at(found.peak.event)
    sizes = lifetimes.size[live[lifetimes.start[live] < 0]]
    return RecordedPeak(
        found.device,
        found.peak.allocated_bytes,
        int(sizes.sum()),
        found.peak.by_category,
        found.peak.lines,
    )
