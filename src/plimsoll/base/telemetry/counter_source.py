"""What a process's counters come from.

A source only reads. It never makes a context on a GPU, and speaks of those GPUs alone that the
process has taken memory of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from plimsoll.base.telemetry.counters import DeviceCounters

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Counters:
    """What a source says at one moment; None is unknown.

    Attributes:
        devices: The GPUs in use.
        pinned_bytes: Page-locked memory of the host.
        shared_total_bytes: How much of the host's memory GPUs may use.
    """

    devices: tuple[DeviceCounters, ...] = field(default=())
    pinned_bytes: int | None = None
    shared_total_bytes: int | None = None


class CounterSource(Protocol):
    """What a process can say of itself."""

    @property
    def allocator(self) -> str:
        """The name of its allocator."""

    def read(self) -> Counters:
        """Its counters now."""


class _Elastic(Protocol):
    """An engine of the elastic allocator."""

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
    """The counters of one GPU from what an allocator there counts.

    Args:
        statistics: By the keys of `torch.cuda.memory_stats()`, and those of shared memory.
        index: The GPU, as PyTorch counts.
        name: Of the card.
        total_bytes: Its dedicated memory.
        context_bytes: What the driver charges beyond what the allocator reserved.
        uuid: Of the card, as NVML writes it, or "".
        is_simulated: Whether there is no such card.
        used_bytes: What all processes use of it, where only the source can know.
        elastic: The engine, if it is of the elastic allocator.
    """
    # PyTorch's rules count what they cannot return; the elastic allocator works it out when asked.
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
