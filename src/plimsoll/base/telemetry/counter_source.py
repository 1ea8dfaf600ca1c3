"""The sources of a process's counters.

A source only reads. It never makes a context on a GPU, and reports only GPUs on which the process
has allocated memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from plimsoll.base.telemetry.counters import DeviceCounters

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Counters:
    """The counters of a source at one moment; None means unknown.

    Attributes:
        devices: The counters of each GPU in use.
        pinned_bytes: The bytes of page-locked host memory that the allocator holds.
        shared_total_bytes: The host memory that GPUs may use.
    """

    devices: tuple[DeviceCounters, ...] = field(default=())
    pinned_bytes: int | None = None
    shared_total_bytes: int | None = None


class CounterSource(Protocol):
    """The interface of an object that reads the counters of this process."""

    @property
    def allocator(self) -> str:
        """The name of the allocator that serves the process."""

    def read(self) -> Counters:
        """Returns the counters now."""


class _Elastic(Protocol):
    """The part of the elastic allocator's interface that this module uses."""

    def fragments_bytes(self) -> int | None: ...


def device_counters(
    statistics: Mapping[str, int],
    *,
    index: int,
    name: str,
    total_bytes: int,
    context_bytes: int | None,
    uuid: str = "",
    is_simulated: bool = False,
    used_bytes: int | None = None,
    elastic: _Elastic | None = None,
) -> DeviceCounters:
    """Makes the counters of one GPU from an allocator's statistics.

    Args:
        statistics: The allocator's counters. Their keys are those of `torch.cuda.memory_stats()`,
            and further keys for the memory that lies on the host.
        index: PyTorch's number of the GPU.
        name: The name of the card.
        total_bytes: The card's dedicated memory.
        context_bytes: The bytes that the driver charges to the process beyond what the allocator
            reserved.
        uuid: The card's UUID as NVML writes it, or "".
        is_simulated: Whether the card is simulated.
        used_bytes: The bytes of a simulated card in use by all processes; None for a real card,
            whose driver reports them.
        elastic: The elastic allocator, which computes its own fragments; None if another allocator
            serves the GPU.
    """
    # `DeviceCounters` says what fragments are. The elastic allocator computes their size on
    # request. All other allocators keep the size up to date in their statistics.
    fragments: int | None = statistics["inactive_split_bytes.all.current"]
    if elastic is not None:
        fragments = elastic.fragments_bytes()
    return DeviceCounters(
        index=index,
        is_simulated=is_simulated,
        name=name,
        uuid=uuid,
        total_bytes=total_bytes,
        used_bytes=used_bytes,
        context_bytes=context_bytes,
        allocated_bytes=statistics["allocated_bytes.all.current"],
        active_bytes=statistics["active_bytes.all.current"],
        reserved_bytes=statistics["reserved_bytes.all.current"],
        fragments_bytes=fragments,
        shared_bytes=statistics.get("shared_reserved_bytes.current", 0),
        shared_allocated_bytes=statistics.get("shared_allocated_bytes.current", 0),
        peak_allocated_bytes=statistics["allocated_bytes.all.peak"],
        peak_reserved_bytes=statistics["reserved_bytes.all.peak"],
        num_alloc_retries=statistics["num_alloc_retries"],
        num_ooms=statistics["num_ooms"],
        num_spills=statistics.get("num_spills", 0),
    )
