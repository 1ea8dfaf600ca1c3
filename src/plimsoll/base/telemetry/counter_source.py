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
    """The counters of a source at one moment; None is unknown.

    Attributes:
        devices: The GPUs in use.
        pinned_bytes: Page-locked memory of the host.
        shared_total_bytes: The host memory that GPUs may use.
    """

    devices: tuple[DeviceCounters, ...] = field(default=())
    pinned_bytes: int | None = None
    shared_total_bytes: int | None = None


class CounterSource(Protocol):
    """Returns the counters of a process."""

    @property
    def allocator(self) -> str:
        """The name of the process's allocator."""

    def read(self) -> Counters:
        """Returns the counters now."""


class _Elastic(Protocol):
    """An engine with the elastic allocator."""

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
        statistics: By the keys of `torch.cuda.memory_stats()`, with those of shared memory.
        index: The GPU, as PyTorch counts.
        name: The name of the card.
        total_bytes: The card's dedicated memory.
        context_bytes: The bytes that the driver charges to the process beyond what the allocator
            reserved.
        uuid: The card's UUID as NVML writes it, or "".
        is_simulated: Whether the card is simulated.
        used_bytes: The bytes in use by all processes, if only the source can know them.
        elastic: The engine, if it has the elastic allocator.
    """
    # The native allocator counts the fragments as it runs; the elastic allocator computes them on
    # request.
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
