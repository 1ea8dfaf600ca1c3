"""Reads all GPUs and processes from NVIDIA's management library (NVML).

No CUDA context is made. A value that NVML does not report is None. If NVML cannot be used at all,
`Reading.unavailable` says why.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MEMORY_V2 = 0x02000028
"""The version number of nvmlMemory_v2, which does not count the driver's own memory as used."""


@dataclass(frozen=True)
class GpuReading:
    """One GPU, or one MIG instance.

    Attributes:
        index: The GPU's number in nvidia-smi; a MIG instance has its GPU's number.
        uuid: The UUID as CUDA writes it, in lower case and without a prefix.
        name: The product's name.
        total_bytes: The bytes of dedicated memory.
        used_bytes: The bytes in use by all processes.
        utilization: The share of recent time in which kernels ran, 0 to 1.
        processes: The bytes that the driver charges to each process, by process id; a value is None
            if NVML does not report it. The whole attribute is None if NVML lists no processes.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int | None
    used_bytes: int | None
    utilization: float | None
    processes: dict[int, int | None] | None


@dataclass(frozen=True)
class Reading:
    """All GPUs at one moment.

    Attributes:
        gpus: The GPUs in NVML's order.
        unavailable: Why NVML reports no GPUs, in one line; else None.
    """

    gpus: tuple[GpuReading, ...] = field(default=())
    unavailable: str | None = None


def plain_uuid(uuid: str) -> str:
    """Returns a GPU's UUID in lower case without a prefix.

    In this form, a UUID from NVML equals the same GPU's UUID from CUDA.
    """
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


class Nvml:
    """NVIDIA's management library (NVML). Each process opens it at the first call."""

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._opened_by: int | None = None

    def read(self) -> Reading:
        """Returns the state of all GPUs."""
        problem = self._open()
        if problem is not None:
            return Reading(unavailable=problem)
        nvml = self._library
        try:
            gpus = []
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                gpus += [self._gpu(index, part) for part in self._parts(handle)]
            return Reading(tuple(gpus))
        except nvml.NVMLError as error:
            return Reading(unavailable=f"NVML failed: {error}")

    def charge(self, uuid: str, pid: int) -> int | None:
        """Returns the bytes that the driver charges to a process on a GPU; None if unknown."""
        if self._open() is not None:
            return None
        for prefix in ("GPU-", "MIG-"):
            handle = self._ask(self._library.nvmlDeviceGetHandleByUUID, prefix + uuid)
            if handle is not None:
                return (self._processes(handle) or {}).get(pid)
        return None

    def _open(self) -> str | None:
        """Opens NVML if this process has not done so. Returns why NVML cannot be used, or None."""
        if self._opened_by == os.getpid():
            return None
        if self._library is None:
            try:
                self._library = importlib.import_module("pynvml")
            except ImportError:
                return "the package nvidia-ml-py is missing: pip install nvidia-ml-py"
        try:
            self._library.nvmlInit()
        except self._library.NVMLError as error:
            return f"NVML is not available: {error}"
        self._opened_by = os.getpid()  # a forked child must open NVML again
        return None

    def _parts(self, handle: Any) -> Iterator[Any]:
        """Yields the GPU's handle, or, if MIG is on, a handle for each of the GPU's instances."""
        nvml = self._library
        mode = self._ask(nvml.nvmlDeviceGetMigMode, handle)
        if not mode or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            yield handle
            return
        for number in range(self._ask(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
            part = self._ask(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            if part is not None:
                yield part

    def _gpu(self, index: int, handle: Any) -> GpuReading:
        nvml = self._library
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle, _MEMORY_V2)
        if memory is None:
            memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        return GpuReading(
            index,
            plain_uuid(self._ask(nvml.nvmlDeviceGetUUID, handle) or ""),
            self._ask(nvml.nvmlDeviceGetName, handle) or "GPU",
            None if memory is None else int(memory.total),
            None if memory is None else int(memory.used),
            None if rates is None else rates.gpu / 100,
            self._processes(handle),
        )

    def _processes(self, handle: Any) -> dict[int, int | None] | None:
        nvml = self._library
        kinds = (
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
        )
        lists = [self._ask(kind, handle) for kind in kinds]
        if all(found is None for found in lists):
            return None
        charges: dict[int, int | None] = {}
        for process in (process for found in lists for process in found or ()):
            # A process that both computes and draws is in both lists, each time with its whole
            # memory.
            charges[process.pid] = process.usedGpuMemory or charges.get(process.pid)
        return charges

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Returns the result of an NVML call; None if NVML reports an error."""
        try:
            return call(*arguments)
        except self._library.NVMLError:
            return None
