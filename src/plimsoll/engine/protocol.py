"""The interface of an engine, the same for real and simulated GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll import _core

AllocatorName = Literal["native", "elastic", "uncached"]
"""PyTorch's rules, plimsoll's own, or a driver call for each request."""

SimulatedAllocatorName = Literal["native", "elastic", "uncached", "wheel"]
"""The allocators of a simulated program; "wheel" is "native" by PyTorch's own code."""

LiveAllocatorName = Literal["elastic", "native"]
"""The allocators that serve PyTorch on a real GPU."""

SpillPolicyName = Literal["strict", "spill"]
"""What happens to a request when dedicated memory is used up: it fails, or gets shared memory."""


class Engine(Protocol):
    """An allocator on one GPU, with dedicated and shared memory.

    The extension's `Engine` is one. Functions that only the elastic allocator has raise ValueError
    under another allocator.
    """

    @property
    def handle(self) -> int:
        """The number by which libraries find the engine."""

    @property
    def limit(self) -> int | None:
        """The most dedicated memory that may be reserved, or None."""

    def set_dedicated_limit(self, limit: int | None) -> None:
        """Sets a second limit beside `limit`, which is the program's own. The lower one holds."""

    shared_limit: int | None
    """The most shared memory that may be reserved, or None."""

    spills: bool
    """Whether requests get shared memory when dedicated memory is used up."""

    def on_first_spill(self, told: Callable[[int], None]) -> None:
        """Calls `told` with the size of the first request that gets shared memory."""

    def memory_info(self) -> tuple[int, int]:
        """Returns the free and the total bytes of dedicated memory."""

    def shared_info(self) -> tuple[int, int]:
        """Returns the free and the total bytes of the host memory that GPUs may use."""

    def statistics(self) -> dict[str, int]:
        """Returns PyTorch's counters, and those of shared and paused memory."""

    @property
    def dedicated_allocated_bytes(self) -> tuple[int, int, int]:
        """The bytes of live blocks now and at the peak, and the sum over all time.

        The first two leave out blocks in shared memory. The sum counts them.
        """

    @property
    def shared_allocated_bytes(self) -> int:
        """The bytes of live blocks in shared memory."""

    def host_reserved_bytes(self) -> int:
        """Returns the page-locked memory that is held for copies."""

    def segments(self) -> list[_core.SegmentInfo]:
        """Returns all memory, block by block."""

    def fragments_bytes(self) -> int | None:
        """Returns the free bytes of pieces partly in use; None where counting takes long."""

    def rebalance(self, most: int | None = None) -> int:
        """Moves spilled memory back to the card, and returns the bytes moved."""

    def region_use(self, region: int) -> dict[str, int]:
        """Returns the fields of a `RegionUse`; none if the region never had memory here."""

    def is_paused(self, region: int) -> bool:
        """Returns whether the region is off the card."""

    def require_pausable(self, region: int) -> None:
        """Raises ValueError if `pause` would refuse the region, even with enough memory."""

    def pause(self, region: int, keep: bool, file: int | None = None) -> int:
        """Moves a region off the card, and returns the bytes that this frees."""

    def resume(self, region: int) -> int:
        """Moves a region back to the card, and returns the bytes that it takes."""

    def check_invariants(self) -> None:
        """Raises RuntimeError if the allocator's books are inconsistent; for tests."""


class Engines(Protocol):
    """All engines of a process."""

    @property
    def allocator(self) -> str:
        """The allocator of all engines."""

    def open(self, device: int) -> Engine:
        """Returns the engine of an existing GPU."""

    def opened(self) -> Mapping[int, Engine]:
        """Returns the engines of all GPUs that were used so far."""
