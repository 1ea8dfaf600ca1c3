"""The time of a loop over batches, and what the loop waited for."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from plimsoll.base.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class LoaderStatistics:
    """The statistics of a `PrefetchLoader` over all its epochs.

    `total_seconds` is the host's time: the sum of `loader_seconds`, `staging_seconds`,
    `gpu_seconds`, `program_seconds` and `other_seconds`. The GPU's waits for copies overlap with
    the host's time.

    `PrefetchLoader.statistics` returns it; docs/data.md explains the figures.

    Attributes:
        batches: Batches returned to the program.
        copied_bytes: Bytes copied to the device.
        total_seconds: Time within loops over the `PrefetchLoader`.
        loader_seconds: Time in which the host waited for the wrapped loader.
        staging_seconds: Time in which the host wrote batches into page-locked memory.
        gpu_seconds: Time in which the host waited until the GPU had read earlier batches.
        program_seconds: Time in the loop's body, on the host.
        copy_seconds: Time in which the GPU waited for an unfinished copy.
        pinned_bytes: Bytes of the process's page-locked buffers. Batches in ordinary memory are
            first copied into these buffers.
    """

    batches: int
    copied_bytes: int
    total_seconds: float
    loader_seconds: float
    staging_seconds: float
    gpu_seconds: float
    program_seconds: float
    copy_seconds: float
    pinned_bytes: int

    @property
    def other_seconds(self) -> float:
        """The host's time for other work, mainly for starting copies."""
        return max(self.total_seconds - sum(self._waits()) - self.program_seconds, 0.0)

    def _waits(self) -> tuple[float, float, float]:
        return self.loader_seconds, self.gpu_seconds, self.staging_seconds

    @property
    def slowest(self) -> str:
        """Names the longest wait of the loop: "loader", "staging" or "copy".

        The value is "program" if no wait took more than a tenth of the loop's time.
        """
        waits = {
            "loader": self.loader_seconds,
            "staging": self.staging_seconds,
            "copy": self.copy_seconds,
        }
        name = max(waits, key=lambda key: waits[key])
        return name if waits[name] > 0.1 * self.total_seconds else "program"

    def __str__(self) -> str:
        seconds = (*self._waits(), self.other_seconds, self.program_seconds)
        loader, gpu, staging, other, program = (
            f"{one:.2f} s ({share}%)"
            for one, share in zip(seconds, _percents(seconds), strict=True)
        )
        batches = format_count(self.batches, "batch", "batches")
        return (
            f"{batches}, {format_size(self.copied_bytes)} copied, in "
            f"{self.total_seconds:.2f} s. The host waited {loader} for the loader and {gpu} for "
            f"the GPU, wrote {staging} into page-locked memory, spent {other} on starting copies "
            f"and the like, and was {program} in the program. The GPU waited "
            f"{self.copy_seconds:.2f} s for copies. {_ADVICE[self.slowest]}"
        )


def _percents(parts: Sequence[float]) -> list[int]:
    """Returns each value's share in whole percents that add up to 100; zeros if all are 0."""
    whole = sum(parts)
    if whole <= 0:
        return [0] * len(parts)
    exact = [100 * part / whole for part in parts]
    percents = [int(share) for share in exact]
    by_rest = sorted(range(len(parts)), key=lambda place: percents[place] - exact[place])
    for place in by_rest[: 100 - sum(percents)]:
        percents[place] += 1
    return percents


_ADVICE = {
    "loader": "The loader is the slowest part: give it more workers.",
    "staging": "Writing into page-locked memory is the slowest part: use plimsoll.PinnedCollate.",
    "copy": "Copies are the slowest part: make batches smaller, for example in a narrower dtype.",
    "program": "The program itself is the slowest part, as it should be.",
}


class Clock:
    """Adds the time spent inside a `with` block to `seconds`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


class Waits:
    """Measures how long a GPU waited for copies, by a pair of events around each wait."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._open: deque[tuple[Any, Any]] = deque()

    def wait(self, copy: Any) -> Any:
        """Returns a copy's result, and measures how long the current stream waits for it."""
        if copy.event is None or copy.event.query():
            return copy.wait()
        stream = torch.cuda.current_stream(copy.made[0].device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        result = copy.wait()
        end.record(stream)
        self._open.append((begin, end))
        while self._open and self._open[0][1].query():
            self._close()
        return result

    def seconds(self) -> float:
        """Returns the seconds of all waits so far; blocks until the last one is over."""
        while self._open:
            self._open[0][1].synchronize()
            self._close()
        return self._seconds

    def _close(self) -> None:
        begin, end = self._open.popleft()
        self._seconds += begin.elapsed_time(end) / 1000
