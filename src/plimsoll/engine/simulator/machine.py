"""Simulates machines: one host with GPUs of any sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from plimsoll import _core
from plimsoll.base.errors import InputError, OutOfMemoryError
from plimsoll.base.units import GiB, format_size, parse_memory, parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

DriverName = Literal["linux", "wddm"]
CallName = Literal[
    "allocate", "deallocate", "reserve", "unreserve", "create", "release", "map", "set_access",
    "unmap", "record", "query", "synchronize", "allocate_host", "deallocate_host",
    "copy",
]  # fmt: skip


@dataclass(frozen=True)
class DriverObjects:
    """The driver's resources that programs hold on a simulated GPU.

    Attributes:
        handles: Allocations of physical memory.
        mappings: Mappings of these allocations to addresses; an allocation may have two.
        events: CUDA events.
        reservations: Reserved address ranges.
        reserved_addresses_bytes: The size of these ranges.
    """

    handles: int
    mappings: int
    events: int
    reservations: int
    reserved_addresses_bytes: int


class SimulatedMachine:
    """A machine with any number of GPUs, a clock, and host memory that the GPUs can share.

    Half of the host's memory is shared GPU memory, as on Windows. With the `linux` driver a device
    allocation fails when dedicated memory is full. With `wddm`, the Windows driver, the allocation
    then takes shared memory, and fails only when shared memory is full too. Only driver calls and
    `advance` move the clock.

    >>> from plimsoll import SimulatedMachine
    >>> from plimsoll.base.units import GiB
    >>> machine = SimulatedMachine(["24GiB", "24GiB"], host_memory="64GiB")
    >>> [gpu.total_bytes // GiB for gpu in machine.gpus]
    [24, 24]
    """

    def __init__(
        self,
        gpus: Sequence[int | str],
        *,
        host_memory: int | str = 64 * GiB,
        driver: DriverName = "linux",
    ) -> None:
        if driver not in ("linux", "wddm"):
            raise InputError(f"unknown driver {driver!r}; there are linux and wddm")
        self.driver = driver
        self._host = _core.SimulatedHost(parse_memory(host_memory) // 2)
        model = _core.DriverModel.wddm if driver == "wddm" else _core.DriverModel.linux
        self.gpus = [
            SimulatedGpu._on(
                _core.SimulatedDriver(self._host, parse_memory(size), model, index), self
            )
            for index, size in enumerate(gpus)
        ]

    @property
    def now(self) -> float:
        """The time on the clock, in seconds since the machine was made."""
        return self._host.now_ns * 1e-9

    def advance(self, seconds: float) -> None:
        """Advances the clock; queued GPU work that ends by the new time is then complete.

        Raises:
            InputError: If `seconds` is negative.
        """
        if seconds < 0:
            raise InputError(f"time does not go back: {seconds} seconds")
        self._host.advance(seconds * 1e9)

    @property
    def shared_total_bytes(self) -> int:
        """The bytes of host memory that the GPUs may use."""
        return self._host.shared_total

    @property
    def shared_free_bytes(self) -> int:
        """The free bytes of the host memory that the GPUs may use."""
        return self._host.shared_free


class SimulatedGpu:
    """One simulated GPU.

    `SimulatedGpu("24GiB")` is alone in its machine; GPUs that share a host come from
    `SimulatedMachine`.

    >>> from plimsoll import SimulatedGpu
    >>> SimulatedGpu("24GiB").total_bytes
    25769803776
    """

    machine: SimulatedMachine
    _driver: _core.SimulatedDriver

    def __init__(
        self,
        memory: int | str,
        *,
        host_memory: int | str = 64 * GiB,
        driver: DriverName = "linux",
    ) -> None:
        machine = SimulatedMachine([memory], host_memory=host_memory, driver=driver)
        self.machine = machine
        self._driver = machine.gpus[0]._driver

    @classmethod
    def _on(cls, driver: _core.SimulatedDriver, machine: SimulatedMachine) -> SimulatedGpu:
        gpu = cls.__new__(cls)
        gpu.machine = machine
        gpu._driver = driver
        return gpu

    @property
    def total_bytes(self) -> int:
        """The bytes of dedicated memory."""
        return self._driver.dedicated_total

    @property
    def free_bytes(self) -> int:
        """The free bytes of dedicated memory."""
        return self._driver.dedicated_free

    @property
    def dedicated_used_bytes(self) -> int:
        """The dedicated memory in use, as nvidia-smi would show it."""
        return self._driver.dedicated_used

    @property
    def most_dedicated_used_bytes(self) -> int:
        """The peak of `dedicated_used_bytes` so far."""
        return self._driver.most_dedicated_used

    @property
    def shared_used_bytes(self) -> int:
        """The host memory that this GPU uses: pinned memory, and what the `wddm` driver spilled."""
        return self._driver.shared_used

    @property
    def driver_objects(self) -> DriverObjects:
        """The driver's resources that programs have taken and not returned."""
        driver = self._driver
        return DriverObjects(
            handles=driver.handles,
            mappings=driver.mappings,
            events=driver.events,
            reservations=driver.reservations,
            reserved_addresses_bytes=driver.reserved_addresses,
        )

    @property
    def driver_seconds(self) -> float:
        """The time that all driver calls so far took on the simulated clock."""
        return self._driver.driver_seconds

    def take(self, size: int | str) -> int:
        """Takes dedicated memory, as a CUDA context, a library or another process would.

        Returns:
            A handle for `give_back`.

        Raises:
            OutOfMemoryError: If the device has less than `size` free.
        """
        size_bytes = parse_size(size)
        handle = self._driver.take(size_bytes)
        if handle is None:
            free = format_size(self.free_bytes)
            raise OutOfMemoryError(
                f"the device has {free} free, not {format_size(size_bytes)}",
                requested_bytes=size_bytes,
                free_bytes=self.free_bytes,
                total_bytes=self.total_bytes,
                limit_bytes=None,
                allocated_bytes=0,
                reserved_bytes=0,
            )
        return handle

    def give_back(self, handle: int) -> None:
        """Frees memory that `take` took."""
        self._driver.give_back(handle)

    def share(self, path: str) -> None:
        """Shares this card with other processes.

        Each process then sees the memory of all these processes as in use.

        Args:
            path: A file that all these processes pass; plimsoll makes it if it does not exist.

        Raises:
            OSError: If the file cannot be made, or this is not Linux.
        """
        try:
            self._driver.share(_core.SharedCard(path))
        except RuntimeError as error:
            raise OSError(str(error)) from None

    def launch(self, stream: int, seconds: float) -> None:
        """Queues GPU work of the given length on a stream and returns immediately."""
        self._driver.launch(stream, seconds * 1e9)

    def synchronize(self) -> None:
        """Advances the clock to the end of all queued work."""
        self._driver.synchronize_device()

    def pin_memory(self, size: int | str) -> int:
        """Allocates pinned host memory, as cudaMallocHost does, and returns its address.

        Raises:
            OutOfMemoryError: If shared memory is full.
        """
        size_bytes = parse_size(size)
        address = self._driver.allocate_host(size_bytes)
        if address is None:
            free = self.machine.shared_free_bytes
            raise OutOfMemoryError(
                f"no pinned memory of {format_size(size_bytes)}: {format_size(free)} of "
                f"{format_size(self.machine.shared_total_bytes)} of shared memory is free",
                requested_bytes=size_bytes,
                free_bytes=free,
                total_bytes=self.machine.shared_total_bytes,
                limit_bytes=None,
                allocated_bytes=0,
                reserved_bytes=self.shared_used_bytes,
            )
        return address

    def unpin_memory(self, address: int) -> None:
        """Frees pinned memory.

        Raises:
            InputError: If the address is not pinned.
        """
        if not self._driver.deallocate_host(address):
            raise InputError(f"{address:#x} is not pinned memory")

    def fail(self, call: CallName, *, after: int = 0, times: int | None = None) -> None:
        """Makes driver calls of one kind fail for lack of memory, for tests.

        A request then raises OutOfMemoryError, or DriverError if the allocator cannot do without
        the call. In both cases the allocator's state stays as it was.

        Args:
            call: The kind, such as "allocate" (cudaMalloc) or "create" (cuMemCreate).
            after: How many calls still succeed before the first failure.
            times: How many calls fail then; None for all later ones.
        """
        kind = getattr(_core.Call, call, None)
        if kind is None:
            raise InputError(f"unknown driver call {call!r}")
        self._driver.inject(kind, after, times)

    def heal(self) -> None:
        """Makes driver calls succeed again after `fail`."""
        self._driver.clear_faults()
