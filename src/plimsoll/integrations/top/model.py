"""Joins NVML's figures of every GPU with the counters of plimsoll's processes.

NVML knows each GPU, and how much memory the driver charges to each process. A process that runs
plimsoll publishes the parts of its memory. This module joins both; other modules read the figures
and show them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plimsoll.base.telemetry.counters import DeviceCounters, ProcessCounters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from plimsoll.base.telemetry.nvml import GpuReading, Reading


@dataclass(frozen=True)
class ProcessUse:
    """One process's memory on one GPU; None means unknown.

    Attributes:
        pid: The process id.
        program: The program's name.
        driver_bytes: The bytes that the driver charges to the process, as NVML reports them. If
            NVML reports none, the size of the process's CUDA context plus the dedicated memory that
            the process's allocator has reserved.
        context_bytes: The size of the process's CUDA context on this GPU.
        counters: The counters of the process's allocator for this GPU; None if plimsoll does not
            run in the process.
        process: The counters of the whole process with all its GPUs; None if plimsoll does not run
            in the process.
        silent_seconds: The seconds since the process last published counters, if the next ones are
            overdue; else None.
    """

    pid: int
    program: str | None
    driver_bytes: int | None
    context_bytes: int | None = None
    counters: DeviceCounters | None = None
    process: ProcessCounters | None = None
    silent_seconds: float | None = None

    @property
    def known_bytes(self) -> int:
        """Returns the process's memory on the card, as far as that is known."""
        if self.driver_bytes is not None:
            return self.driver_bytes
        return 0 if self.counters is None else self.counters.dedicated_bytes

    def to_dict(self) -> dict[str, Any]:
        """Returns the values for JSON."""
        counters = self.counters
        names = (
            "allocated_bytes", "active_bytes", "pending_bytes", "cached_bytes", "fragments_bytes",
            "reserved_bytes", "dedicated_bytes", "shared_bytes", "shared_allocated_bytes",
            "peak_allocated_bytes", "peak_reserved_bytes", "num_alloc_retries", "num_ooms",
            "num_spills",
        )  # fmt: skip
        return {
            "pid": self.pid,
            "program": self.program,
            "runs_plimsoll": counters is not None,
            "allocator": None if self.process is None else self.process.allocator,
            "device": None if counters is None else counters.index,
            "driver_bytes": self.driver_bytes,
            "context_bytes": self.context_bytes,
            **{name: None if counters is None else getattr(counters, name) for name in names},
            "pinned_bytes": None if self.process is None else self.process.pinned_bytes,
            "job": None if self.process is None else self.process.place.job,
            "rank": None if self.process is None else self.process.place.rank,
            "silent_seconds": self.silent_seconds,
        }


@dataclass(frozen=True)
class GpuUse:
    """One GPU; None means unknown.

    Attributes:
        label: The GPU's name in tables: its number. The process id follows if the GPU is
            simulated, as in "0 of 4711". If the GPU is in another machine, the host's name comes
            first.
        name: The product's name.
        uuid: The UUID without a prefix; "" for a simulated GPU.
        is_simulated: Whether the GPU is simulated, so that it exists in one process only.
        dedicated_total_bytes: The card's own memory.
        dedicated_used_bytes: The used part of the card's own memory, over all processes.
        shared_total_bytes: The host memory that the GPU may use.
        shared_used_bytes: The host memory that processes with plimsoll reserved for this GPU, plus
            their page-locked memory. If a process uses several GPUs, its page-locked memory is
            added only to the GPU with the lowest number.
        utilization: The share of recent time in which kernels ran, 0 to 1.
        processes: Its known processes, most memory first.
        notes: Notes on unavailable figures.
        host: The name of the machine that has the GPU; None for this machine.
    """

    label: str
    name: str
    uuid: str
    is_simulated: bool
    dedicated_total_bytes: int | None
    dedicated_used_bytes: int | None
    shared_total_bytes: int | None
    shared_used_bytes: int
    utilization: float | None
    processes: tuple[ProcessUse, ...]
    notes: tuple[str, ...] = field(default=())
    host: str | None = None

    @property
    def known_bytes(self) -> int:
        """Returns the memory in use, as far as that is known."""
        if self.dedicated_used_bytes is not None:
            return self.dedicated_used_bytes
        return sum(process.known_bytes for process in self.processes)

    def to_dict(self) -> dict[str, Any]:
        """Returns the values for JSON."""
        return {
            "label": self.label,
            "name": self.name,
            "uuid": self.uuid or None,
            "is_simulated": self.is_simulated,
            "dedicated_total_bytes": self.dedicated_total_bytes,
            "dedicated_used_bytes": self.dedicated_used_bytes,
            "shared_total_bytes": self.shared_total_bytes,
            "shared_used_bytes": self.shared_used_bytes,
            "utilization": self.utilization,
            "notes": list(self.notes),
            "processes": [process.to_dict() for process in self.processes],
        }


@dataclass(frozen=True)
class Machine:
    """All GPUs of this machine, or of several, at one moment.

    Attributes:
        gpus: The GPUs; real ones come first on each machine.
        notes: Notes on unavailable figures.
        silent_hosts: Machines that did not answer, and why.
    """

    gpus: tuple[GpuUse, ...]
    notes: tuple[str, ...] = field(default=())
    silent_hosts: tuple[tuple[str, str], ...] = field(default=())

    @property
    def num_processes(self) -> int:
        """Returns the number of processes with memory on any GPU."""
        return len({(gpu.host, process.pid) for gpu in self.gpus for process in gpu.processes})

    def to_dict(self) -> dict[str, Any]:
        """Returns the values for JSON."""
        return {"gpus": [gpu.to_dict() for gpu in self.gpus], "notes": list(self.notes)}


def put_together(
    reading: Reading,
    processes: Sequence[ProcessCounters],
    *,
    program_of: Callable[[int], str | None],
) -> Machine:
    """Joins NVML's reading with the counters of processes.

    Args:
        reading: NVML's reading.
        processes: The counters of the processes that run plimsoll.
        program_of: A function that returns the program's name for a process without plimsoll.
    """
    mine: dict[str, list[tuple[ProcessCounters, DeviceCounters]]] = {}
    simulated: list[GpuUse] = []
    for process in processes:
        for device in process.devices:
            if device.is_simulated:
                simulated.append(_simulated_gpu(process, device))
            else:
                mine.setdefault(device.uuid, []).append((process, device))
    gpus = [_gpu(gpu, mine.pop(gpu.uuid, []), program_of) for gpu in reading.gpus]
    gpus += [_unread_gpu(users) for users in mine.values()]
    notes = []
    if reading.unavailable is not None:
        notes.append(f"{reading.unavailable}; only processes that plimsoll runs in are seen")
    return Machine((*gpus, *simulated), tuple(notes))


def _gpu(
    reading: GpuReading,
    users: list[tuple[ProcessCounters, DeviceCounters]],
    program_of: Callable[[int], str | None],
) -> GpuUse:
    charges = reading.processes or {}
    uses = [_use(process, device, charges.get(process.pid)) for process, device in users]
    known = {use.pid for use in uses}
    uses += [
        ProcessUse(pid, program_of(pid), charge)
        for pid, charge in charges.items()
        if pid not in known
    ]
    return GpuUse(
        label=str(reading.index),
        name=reading.name,
        uuid=reading.uuid,
        is_simulated=False,
        dedicated_total_bytes=reading.total_bytes,
        dedicated_used_bytes=reading.used_bytes,
        shared_total_bytes=_shared_total(users),
        shared_used_bytes=sum(_shared(*user) for user in users),
        utilization=reading.utilization,
        processes=_sorted(uses),
        notes=tuple(_missing(reading, known)),
    )


def _missing(reading: GpuReading, known: set[int]) -> Iterable[str]:
    if reading.used_bytes is None:
        yield "NVML does not say how much memory is in use"
    if reading.processes is None:
        yield "NVML does not say which processes use it"
    elif known - reading.processes.keys():
        yield "NVML does not show all processes (as in a container), so others may use this GPU too"
    elif None in reading.processes.values():
        yield "NVML does not say how much some processes hold; it may need other rights"


def _unread_gpu(users: list[tuple[ProcessCounters, DeviceCounters]]) -> GpuUse:
    """Describes a GPU that plimsoll's processes use, but that NVML does not list."""
    _, device = users[0]
    return GpuUse(
        label=str(device.index),
        name=device.name,
        uuid=device.uuid,
        is_simulated=False,
        dedicated_total_bytes=device.total_bytes,
        dedicated_used_bytes=None,
        shared_total_bytes=_shared_total(users),
        shared_used_bytes=sum(_shared(*user) for user in users),
        utilization=None,
        processes=_sorted([_use(process, device, None) for process, device in users]),
        notes=("the GPU's number is that in its process; what other processes hold is not known",),
    )


def _simulated_gpu(process: ProcessCounters, device: DeviceCounters) -> GpuUse:
    return GpuUse(
        label=f"{device.index} of {process.pid}",
        name=device.name,
        uuid="",
        is_simulated=True,
        dedicated_total_bytes=device.total_bytes,
        dedicated_used_bytes=device.used_bytes,
        shared_total_bytes=process.shared_total_bytes,
        shared_used_bytes=_shared(process, device),
        utilization=None,
        processes=(_use(process, device, None),),
    )


def _use(process: ProcessCounters, device: DeviceCounters, charge: int | None) -> ProcessUse:
    context = device.context_bytes
    if context is None and charge is not None and charge >= device.dedicated_bytes:
        context = charge - device.dedicated_bytes
    if charge is None and context is not None:
        charge = context + device.dedicated_bytes
    return ProcessUse(
        pid=process.pid,
        program=process.program,
        driver_bytes=charge,
        context_bytes=context,
        counters=device,
        process=process,
        silent_seconds=process.silent_seconds(),
    )


def _shared(process: ProcessCounters, device: DeviceCounters) -> int:
    is_first = device.index == min(other.index for other in process.devices)
    return device.shared_bytes + ((process.pinned_bytes or 0) if is_first else 0)


def _shared_total(users: list[tuple[ProcessCounters, DeviceCounters]]) -> int | None:
    return next((p.shared_total_bytes for p, _ in users if p.shared_total_bytes is not None), None)


def _sorted(uses: list[ProcessUse]) -> tuple[ProcessUse, ...]:
    return tuple(sorted(uses, key=lambda use: (-use.known_bytes, use.pid)))
