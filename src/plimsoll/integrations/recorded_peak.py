"""Finds the peak of a recorded part of a program, such as a cell or a test."""

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
    """The peak of allocated memory, on the GPU on which the process held the most.

    Attributes:
        device: The GPU's number in PyTorch.
        allocated_bytes: Bytes in live blocks, as `torch.cuda.max_memory_allocated` counts them.
        before_bytes: The part of the peak that was allocated before the recording began.
        by_category: The bytes of the peak by category.
        lines: The source lines that hold the peak; the line with the most bytes comes first. For
            blocks allocated before the recording, not every line is known.
    """

    device: int
    allocated_bytes: int
    before_bytes: int
    by_category: dict[str, int]
    lines: list[LineShare]


def recorded_peak(path: str | PathLike[str]) -> RecordedPeak:
    """Finds the peak of a recording.

    Raises:
        InputError: If the recording cannot be read, or has no events.
    """
    recording = read_recording(path)
    found = explain(recording, advice=False)
    fullest = max(found.devices, key=lambda use: use.peak_allocated_bytes or 0).device
    if fullest != found.device:  # `explain` prefers a device with failed requests
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
