"""Reads the memory of this process's GPUs as named numbers, which trackers accept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.telemetry.publisher import source_of_process
from plimsoll.base.telemetry.torch_counters import TorchCounters
from plimsoll.base.units import GiB

if TYPE_CHECKING:
    from plimsoll.base.telemetry.counters import DeviceCounters

_SIZES = (
    "allocated_bytes", "reserved_bytes", "shared_bytes", "peak_allocated_bytes",
    "peak_reserved_bytes",
)  # fmt: skip
_COUNTS = {"num_alloc_retries": "alloc_retries", "num_ooms": "ooms"}


@dataclass(frozen=True)
class GpuMemory:
    """The state of one GPU of this process.

    Attributes:
        counters: The counters of its allocator; peaks are those since the program
            last reset them.
        headroom_bytes: The bytes of the card that would be free if this process were at its peak
            again, and other processes kept their present memory.
    """

    counters: DeviceCounters
    headroom_bytes: int

    def figures(self) -> dict[str, float]:
        """Returns the figures for a run's logger, each under the name to log it by.

        Sizes are in GiB.
        """
        sizes = {name: getattr(self.counters, name) for name in _SIZES}
        sizes["headroom_bytes"] = self.headroom_bytes
        of_gpu = {name.replace("_bytes", "_gib"): size / GiB for name, size in sizes.items()}
        of_gpu |= {name: getattr(self.counters, key) for key, name in _COUNTS.items()}
        return {f"gpu{self.counters.index}_memory/{name}": one for name, one in of_gpu.items()}


class GpusInUse:
    """The GPUs, real or simulated, on which this process has allocated memory."""

    def __init__(self) -> None:
        self._torch = TorchCounters()

    def read(self) -> list[GpuMemory]:
        """Returns the state of each GPU in use, lowest number first.

        The list is empty before CUDA is initialized.
        """
        now = (source_of_process() or self._torch).read()
        return [_gpu_memory(device) for device in now.devices if device.peak_reserved_bytes]


def _gpu_memory(counters: DeviceCounters) -> GpuMemory:
    import torch

    free, _ = torch.cuda.mem_get_info(counters.index)
    still_to_come = counters.peak_reserved_bytes - counters.dedicated_bytes
    return GpuMemory(counters, max(free - still_to_come, 0))
