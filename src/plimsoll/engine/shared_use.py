"""A run's use of shared memory, and a lower bound of the time that it cost.

Shared memory is host memory that a GPU uses directly. The name is that of Windows' Task Manager.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll import _core
from plimsoll.base.units import format_count, format_seconds, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class SharedUse:
    """The use of shared memory.

    A block lies in shared memory if the card was full (the block spilled), or if the program placed
    the block there.

    Attributes:
        total_bytes: The size of shared memory.
        peak_dedicated_bytes: The most reserved in dedicated memory, which is the card's own.
        peak_bytes: The most reserved in shared memory.
        peak_allocated_bytes: The most that live blocks took of shared memory.
        num_spills: Requests that got shared memory because dedicated memory was used up.
        spilled_bytes: The total size of all blocks that got shared memory during the run, whether
            they spilled or were placed there.
        transfer_seconds: A lower bound of the time to access `spilled_bytes`. It assumes one write
            and one read of each byte over an idle bus, at the rate measured for copies of an H100
            (PCIe Gen5). More accesses, or accesses in small pieces, cost more.
        host_memory_seconds: The time to allocate the host memory, by plimsoll's cost model of the
            driver; None for Windows' driver, whose cost is unknown.
    """

    total_bytes: int
    peak_dedicated_bytes: int
    peak_bytes: int
    peak_allocated_bytes: int
    num_spills: int
    spilled_bytes: int
    transfer_seconds: float
    host_memory_seconds: float | None

    @classmethod
    def measure(
        cls,
        stats: Mapping[str, int],
        *,
        total_bytes: int,
        peak_dedicated_bytes: int,
        by_driver: bool,
    ) -> SharedUse:
        """Makes a `SharedUse` from an allocator's counters.

        Args:
            stats: The counters of a whole run, including those of shared memory.
            total_bytes: The size of shared memory.
            peak_dedicated_bytes: The most reserved in dedicated memory.
            by_driver: Whether the driver decides which blocks spill; otherwise the allocator does.
        """
        spilled = stats["shared_allocated_bytes.allocated"]
        taken = stats["shared_reserved_bytes.allocated"]
        return cls(
            total_bytes=total_bytes,
            peak_dedicated_bytes=peak_dedicated_bytes,
            peak_bytes=stats["shared_reserved_bytes.peak"],
            peak_allocated_bytes=stats["shared_allocated_bytes.peak"],
            num_spills=stats["num_spills"],
            spilled_bytes=spilled,
            transfer_seconds=2 * spilled / _core.COPY_BYTES_PER_NS * 1e-9,
            host_memory_seconds=None if by_driver else taken / _core.HOST_BYTES_PER_NS * 1e-9,
        )

    def lines(self) -> list[str]:
        """Returns the lines that a report prints."""
        if self.peak_allocated_bytes == 0:
            return ["Nothing spilled into shared memory."]
        requests = format_count(self.num_spills, "request")
        what = f"{requests} spilled into shared memory" if self.num_spills else "Nothing spilled"
        lines = [
            f"{what}; blocks there took {format_size(self.spilled_bytes)} in all, and at most "
            f"{format_size(self.peak_allocated_bytes)} at a time.",
            f"That costs at least {format_seconds(self.transfer_seconds)}, if each byte is written "
            f"and read once at {_core.COPY_BYTES_PER_NS:.0f} GB/s.",
        ]
        if self.host_memory_seconds is not None:
            seconds = format_seconds(self.host_memory_seconds)
            lines.append(f"The driver takes {seconds} to allocate the host memory.")
        return lines
