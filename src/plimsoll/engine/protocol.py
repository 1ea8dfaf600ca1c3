"""The interface of an engine, the same for real and simulated GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll import _core

AllocatorName = Literal["native", "elastic", "uncached"]
"""The names of the allocators; each engine uses one.

"native" follows PyTorch's rules, "elastic" is plimsoll's own, and "uncached" keeps no free memory.
"""

SimulatedAllocatorName = Literal["native", "elastic", "uncached", "wheel"]
"""The names of the allocators that a program can use on a simulated GPU.

"wheel" runs PyTorch's own compiled allocator, which the installed CUDA build of PyTorch contains.
"""

LiveAllocatorName = Literal["elastic", "native"]
"""The allocators that serve PyTorch on a real GPU."""

SpillPolicyName = Literal["strict", "spill"]
"""Whether a request fails ("strict") or gets shared memory ("spill") when the card is full."""


class Engine(Protocol):
    """An allocator on one GPU.

    Dedicated memory is the card's own; shared memory is host memory that the GPU uses directly. A
    region is a named part of a program's memory that can be moved off the card as a whole (see
    `plimsoll.offloading.tiers.regions`).

    `_core.Engine` has this interface. Some functions need the elastic allocator; under any
    other allocator they raise ValueError.
    """

    @property
    def handle(self) -> int:
        """The number by which compiled libraries find the engine."""

    @property
    def limit(self) -> int | None:
        """The most dedicated memory that may be reserved; None for no limit."""

    def set_dedicated_limit(self, limit: int | None) -> None:
        """Sets the user's limit on dedicated memory.

        The program may also set a limit, with `set_per_process_memory_fraction`. The allocator
        follows the lower one of the two limits.
        """

    shared_limit: int | None
    """The most shared memory that may be reserved; None for no limit."""

    spills: bool
    """Whether requests get shared memory when dedicated memory is used up."""

    def on_first_spill(self, told: Callable[[int], None]) -> None:
        """Registers `told`, which gets the size of the first request that spills."""

    def memory_info(self) -> tuple[int, int]:
        """Returns the free and the total bytes of dedicated memory."""

    def shared_info(self) -> tuple[int, int]:
        """Returns the free and the total bytes of the host memory that GPUs may use."""

    def statistics(self) -> dict[str, int]:
        """Returns PyTorch's counters by their names, and counters of shared and paused memory."""

    @property
    def dedicated_allocated_bytes(self) -> tuple[int, int, int]:
        """The allocated bytes now, the allocated bytes at the peak, and all bytes ever allocated.

        The bytes that are in shared memory now are subtracted from the first two counts.
        """

    @property
    def shared_allocated_bytes(self) -> int:
        """The bytes of live blocks in shared memory."""

    def host_reserved_bytes(self) -> int:
        """Returns the bytes of page-locked host memory that the engine holds for copies."""

    def segments(self) -> list[_core.SegmentInfo]:
        """Returns all segments with their blocks."""

    def fragments_bytes(self) -> int | None:
        """Returns the free bytes in granules that also hold a live block.

        A granule is a piece of 2 MiB, which the elastic allocator maps as a whole. Because of the
        live block, the allocator cannot move the granule's free bytes to another address. So only
        requests that fit into these bytes can use them. Returns None if counting would take long.
        """

    def rebalance(self, most: int | None = None) -> int:
        """Moves spilled memory back to the card, at most `most` bytes. Returns the bytes moved."""

    def region_use(self, region: int) -> dict[str, int]:
        """Returns the fields of a `RegionUse`; {} if the region never had memory on this GPU."""

    def is_paused(self, region: int) -> bool:
        """Returns whether `pause` has moved the region off the card."""

    def require_pausable(self, region: int) -> None:
        """Checks that the region is in a state in which `pause` can move it.

        Does not check that host memory, or the file, has room for the region's content.

        Raises:
            ValueError: If the region is paused already, one of its blocks was exported, or a CUDA
                graph is being captured.
        """

    def pause(self, region: int, keep: bool, file: int | None = None) -> int:
        """Moves a region off the card. Returns the bytes that this frees on the card.

        Args:
            region: The region's number.
            keep: Whether to keep the region's content. If False, the content is lost.
            file: The descriptor of an open file that keeps the content. If None, page-locked memory
                keeps the content.
        """

    def resume(self, region: int) -> int:
        """Moves a region back to the card. Returns the bytes that this takes on the card."""

    def check_invariants(self) -> None:
        """Raises RuntimeError if the allocator's bookkeeping is inconsistent; for tests."""


class Engines(Protocol):
    """All engines of a process."""

    @property
    def allocator(self) -> str:
        """The name of the allocator that all engines have."""

    def open(self, device: int) -> Engine:
        """Returns the engine of a GPU. The GPU must exist."""

    def opened(self) -> Mapping[int, Engine]:
        """Returns the engines of all GPUs that were used so far."""
