"""The peak of a recorded part of a program, such as a cell or a test, and its lines."""

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
    """The GPU on which the process held the most, at that moment.

    Attributes:
        device: The GPU, as PyTorch counts.
        allocated_bytes: Bytes in live blocks, as `torch.cuda.max_memory_allocated` counts them.
        before_bytes: The part of it that was allocated before the recording began.
        by_category: All of it by category.
        lines: The lines that hold it, most first; lines of older blocks are known only in part.
    """

    device: int
    allocated_bytes: int
    before_bytes: int
    by_category: dict[str, int]
    lines: list[LineShare]


def recorded_peak(path: str | PathLike[str]) -> RecordedPeak:
    """Finds the peak of a recording.

    Raises:
        InputError: If it cannot be read, or has no events.
    """
    recording = read_recording(path)
    found = explain(recording, advice=False)
    fullest = max(found.devices, key=lambda use: use.peak_allocated_bytes or 0).device
    if fullest != found.device:  # if requests failed, the explanation is of their device
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
