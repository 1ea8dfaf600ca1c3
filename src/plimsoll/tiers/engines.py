"""The engines that serve this process's GPUs, real ones or simulated ones alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from plimsoll.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plimsoll import _core

_NOT_INSTALLED = (
    "plimsoll's allocator is not in place: start the script with `plimsoll run`, or call "
    "plimsoll.install() before the first tensor on a GPU"
)


class Engine(Protocol):
    """An allocator on one GPU, as far as its two tiers go.

    The extension's `LiveEngine` is one, and its `Engine`, on a simulated GPU. What only the elastic
    allocator can do raises ValueError under another one.
    """

    @property
    def handle(self) -> int:
        """What tells engines apart."""

    @property
    def limit(self) -> int | None:
        """The most dedicated memory that may be reserved, or None."""

    def set_dedicated_limit(self, limit: int | None) -> None:
        """Likewise, as a person wants it."""

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
        """Of live blocks: now, at the peak, and in all the time.

        Without what is in shared memory now, but for the last.
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

    def pause(self, region: int, keep: bool, file: int | None = None) -> int:
        """Take a region off the card; returns the bytes that are free now."""

    def resume(self, region: int) -> int:
        """Bring it back; returns the bytes that it takes."""


class Engines(Protocol):
    """All engines of a process."""

    @property
    def allocator(self) -> str:
        """Which allocator they are of."""

    def open(self, device: int) -> Engine:
        """The engine of a GPU that there is."""

    def opened(self) -> Mapping[int, Engine]:
        """Those of all GPUs that were used so far."""


_engines: Engines | None = None


def set_engines(engines: Engines) -> None:
    """Say which engines serve this process from now on."""
    global _engines
    _engines = engines


def current_engines() -> Engines | None:
    """Those that serve this process, if plimsoll's allocator does."""
    return _engines


def allocator_name() -> str | None:
    """Which allocator serves this process, if it is one of plimsoll's.

    The elastic one falls back to PyTorch's rules where the driver has no virtual memory.
    """
    if _engines is None:
        return None
    opened = _engines.opened().values()
    fell_back = any(getattr(engine, "fell_back", None) is not None for engine in opened)
    return "native" if fell_back else _engines.allocator


def _installed() -> Engines:
    if _engines is None:
        raise InputError(_NOT_INSTALLED)
    return _engines


def check_elastic() -> None:
    """Whether requests can be placed in this process.

    Raises:
        InputError: If another allocator than plimsoll's elastic one serves it.
    """
    name = _installed().allocator
    if name != "elastic":
        raise InputError(
            f"regions and shared memory need the elastic allocator, and {name} is in place: choose "
            "--allocator elastic, or plimsoll.install()"
        )


def engine_of(device: int | None = None) -> Engine:
    """The engine of a GPU, by default of the current one.

    Raises:
        InputError: If plimsoll's allocator is not installed, or there is no such GPU.
    """
    return _installed().open(device_number(device))


def device_number(device: int | None = None) -> int:
    """The number of a GPU, by default of the current one.

    Raises:
        InputError: If there is no such GPU.
    """
    import torch

    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if device is None else device
    if not 0 <= index < count:
        raise InputError(f"there is no GPU {index}; there are {count}")
    return index


def opened_engine(device: int) -> Engine | None:
    """The engine of a GPU, if plimsoll's allocator has used it."""
    return None if _engines is None else _engines.opened().get(device)


def engines_in_use() -> Mapping[int, Engine]:
    """The engines of all GPUs that were used so far.

    Raises:
        InputError: If plimsoll's allocator is not installed.
    """
    return _installed().opened()
