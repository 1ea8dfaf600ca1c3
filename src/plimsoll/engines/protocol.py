"""What an engine is to the rest of a program: one interface to real GPUs and simulated ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll import _core

AllocatorName = Literal["native", "elastic", "uncached"]
"""PyTorch's rules, plimsoll's own, or a driver call for each request."""

LiveAllocatorName = Literal["elastic", "native"]
"""Those of them that serve PyTorch on a real GPU."""

SpillPolicyName = Literal["strict", "spill"]
"""What happens to a request when dedicated memory is spent: it fails, or gets shared memory."""


class Engine(Protocol):
    """An allocator on one GPU, as far as its two tiers go.

    The extension's `Engine` is one. What only the elastic allocator can do raises ValueError under
    another one.
    """

    @property
    def handle(self) -> int:
        """What tells engines apart."""

    @property
    def limit(self) -> int | None:
        """The most dedicated memory that may be reserved, or None."""

    def set_dedicated_limit(self, limit: int | None) -> None:
        """Set a second limit beside `limit`, the program's own; the lower one holds."""

    shared_limit: int | None
    """The most shared memory that may be reserved, or None."""

    spills: bool
    """Whether requests go on in shared memory when dedicated memory is spent."""

    def on_first_spill(self, told: Callable[[int], None]) -> None:
        """Call `told` with the size of the first request that does."""

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of dedicated memory."""

    def shared_info(self) -> tuple[int, int]:
        """Free and total bytes of the host memory that GPUs may use."""

    def statistics(self) -> dict[str, int]:
        """PyTorch's counters, and those of shared and paused memory."""

    @property
    def dedicated_allocated_bytes(self) -> tuple[int, int, int]:
        """Of live blocks: now, at the peak, and the sum over all time.

        The first two leave out what is in shared memory now; the sum counts it.
        """

    @property
    def shared_allocated_bytes(self) -> int:
        """What of live blocks is in shared memory."""

    def host_reserved_bytes(self) -> int:
        """Page-locked memory that is held for copies."""

    def segments(self) -> list[_core.SegmentInfo]:
        """All memory, block by block."""

    def fragments_bytes(self) -> int | None:
        """What is free in pieces that are in use elsewhere; None where that takes long to say."""

    def rebalance(self, most: int | None = None) -> int:
        """Bring spilled memory back to the card; returns the bytes moved."""

    def region_use(self, region: int) -> dict[str, int]:
        """The fields of a `RegionUse`; nothing if the region never had memory here."""

    def is_paused(self, region: int) -> bool:
        """Whether the region is off the card."""

    def require_pausable(self, region: int) -> None:
        """Raise ValueError if `pause` would refuse, whatever memory there is."""

    def pause(self, region: int, keep: bool, file: int | None = None) -> int:
        """Take a region off the card; returns the bytes that are free now."""

    def resume(self, region: int) -> int:
        """Bring it back; returns the bytes that it takes."""

    def check_invariants(self) -> None:
        """Raise RuntimeError if the allocator's own books do not agree; for tests."""


class Engines(Protocol):
    """All engines of a process."""

    @property
    def allocator(self) -> str:
        """Which allocator they are of."""

    def open(self, device: int) -> Engine:
        """The engine of a GPU that there is."""

    def opened(self) -> Mapping[int, Engine]:
        """Those of all GPUs that were used so far."""
