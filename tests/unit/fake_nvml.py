"""A stand-in for the module pynvml: GPUs as data, and errors on demand."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """The error that pynvml raises."""


@dataclass
class Gpu:
    """What NVML reports about one GPU. `fails` names the NVML functions that fail for this GPU."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total: int = 80 << 30
    used: int = 0
    busy: int = 0
    compute: dict[int, int | None] = field(default_factory=dict)
    graphics: dict[int, int | None] = field(default_factory=dict)
    parts: list[Gpu | None] = field(default_factory=list)
    fails: set[str] = field(default_factory=set)


class FakeNvml:
    """A stand-in for the part of pynvml that plimsoll uses."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, *gpus: Gpu, fails: str | None = None) -> None:
        self.gpus = list(gpus)
        self.fails = fails
        self.opened = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.fails is not None:
            raise NVMLError(self.fails)
        self.opened += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:  # noqa: N802
        for gpu in self.gpus:
            for each in (gpu, *gpu.parts):
                if each is not None and each.uuid == uuid:
                    return each
        raise NVMLError("Not Found")

    def __getattr__(self, name: str) -> Any:
        """Returns the NVML function `name`.

        The function raises `NVMLError` for each GPU whose `fails` contains this name.
        """
        answer = _ANSWERS.get(name)
        if answer is None:
            raise AttributeError(name)

        def call(gpu: Gpu, *arguments: int) -> Any:
            if name in gpu.fails:
                raise NVMLError("Not Supported")
            return answer(gpu, *arguments)

        return call


def _processes(charges: dict[int, int | None]) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in charges.items()]


def _part(gpu: Gpu, number: int) -> Gpu:
    part = gpu.parts[number]
    if part is None:
        raise NVMLError("Not Found")
    return part


_ANSWERS: dict[str, Any] = {
    "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
    "nvmlDeviceGetName": lambda gpu: gpu.name,
    "nvmlDeviceGetMemoryInfo": lambda gpu, _=None: SimpleNamespace(total=gpu.total, used=gpu.used),
    "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=gpu.busy),
    "nvmlDeviceGetMigMode": lambda gpu: [int(bool(gpu.parts))] * 2,
    "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: len(gpu.parts),
    "nvmlDeviceGetMigDeviceHandleByIndex": _part,
    "nvmlDeviceGetComputeRunningProcesses": lambda gpu: _processes(gpu.compute),
    "nvmlDeviceGetGraphicsRunningProcesses": lambda gpu: _processes(gpu.graphics),
}
