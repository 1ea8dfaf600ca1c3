"""Devices of torch.cuda: the current one, contexts, and the cards' properties."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.simulated_nvml import card_uuid

if TYPE_CHECKING:
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation


_ONLY_COMPARES = (
    "torch/nn/parallel/data_parallel.py",  # warns if the cards' memory differs
    "torch/profiler/_chrome_trace_export.py",
)


def device_functions(devices: CudaDevices) -> dict[str, Any]:
    """Returns the members of `torch._C` for devices, by name."""
    simulation, count = devices.simulation, devices.count
    return {
        "_cuda_init": devices.initialize,
        "_cuda_getDeviceCount": lambda: count,
        "_cuda_getDevice": devices.current,
        "_cuda_setDevice": devices.set_current,
        "_cuda_exchangeDevice": devices.exchange,
        "_cuda_maybeExchangeDevice": devices.maybe_exchange,
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_cuda_isInBadFork": simulation.is_forked,
        "_cuda_getArchFlags": lambda: _arch_flags(simulation),
        "_cuda_getCompiledVersion": lambda: 13000,
        "_cuda_hasPrimaryContext": lambda index: index in simulation.contexts,
        "_has_cuda": True,
        "_has_cudnn": True,
        "_CudaDeviceProperties": _DeviceProperties,
        "_CUuuid": type("_CUuuid", (), {"bytes": bytes(16)}),
    }


class CudaDevices:
    """Answers what torch.cuda asks about devices. Each thread has its own current device.

    Attributes:
        simulation: The GPUs.
        lib: The C functions of the simulated GPUs.
        count: The number of devices.
        error: The class of CUDA's errors.
    """

    def __init__(self, c: ModuleType, simulation: Simulation) -> None:
        self.simulation = simulation
        self.lib = simulation.library.lib
        self.count = len(simulation.allocators)
        self.error: type[Exception] = c.AcceleratorError

    def current(self) -> int:
        """Returns the index of the thread's current device."""
        return int(self.lib.plimsoll_current_device())

    def use(self, index: int) -> None:
        """Creates a device's CUDA context if it has none."""
        if not 0 <= index < self.count:
            raise self.error(self.simulation.library.no_such_device(index))
        self.lib.plimsoll_use(index)

    def set_current(self, index: int) -> None:
        """Makes a device the current one, and creates its CUDA context."""
        import torch

        if index >= 0 and self.lib.plimsoll_set_device(index) != 0:
            raise self.error(self.simulation.library.no_such_device(index))
        torch.cuda._lazy_init()
        self.use(self.current())

    def exchange(self, index: int) -> int:
        """Makes a device the current one, and returns the previous one's index."""
        before = self.current()
        if index < 0:
            return -1
        if index != before:
            self.set_current(index)
        return before

    def maybe_exchange(self, index: int) -> int:
        """Works like `exchange`, but creates no CUDA context."""
        if index not in self.simulation.contexts and 0 <= index < self.count:
            before = self.current()
            self.lib.plimsoll_set_device(index)
            return before
        return self.exchange(index)

    def initialize(self) -> None:
        """Initializes CUDA, as torch.cuda.init() does."""
        import torch

        if self.count == 0:
            raise RuntimeError("No CUDA GPUs are available")
        self.simulation.read_environment()
        self.simulation.is_initialized = True
        self.lib.plimsoll_initialize()
        self.lib.plimsoll_default_generators(1)
        torch.cuda.default_generators = tuple(
            torch.Generator(f"cuda:{index}") for index in range(self.count)
        )
        self.lib.plimsoll_default_generators(0)
        torch.cuda._get_device_properties = self._properties

    def _properties(self, index: int) -> _DeviceProperties:
        return _DeviceProperties(self.simulation, index)


class _DeviceProperties:
    """The properties of a simulated GPU that torch.cuda.get_device_properties() returns."""

    def __init__(self, simulation: Simulation, index: int) -> None:
        profile = simulation.profiles[index]
        self.name = profile.full_name
        self.major, self.minor = profile.compute_capability
        self._simulation, self._total_memory = simulation, profile.total_bytes
        self.multi_processor_count = profile.multiprocessors
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.max_threads_per_multi_processor = profile.max_threads_per_multiprocessor
        self.max_threads_per_block = 1024
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = profile.shared_memory_per_block_optin_bytes
        self.shared_memory_per_multiprocessor = profile.shared_memory_per_multiprocessor_bytes
        self.L2_cache_size = profile.l2_cache_bytes
        self.gcnArchName = profile.full_name
        self.uuid = card_uuid(index)
        self.pci_bus_id, self.pci_device_id, self.pci_domain_id = index + 1, 0, 0

    @property
    def total_memory(self) -> int:
        """Bytes of the card's memory."""
        if not _only_compares():
            self._simulation.note_size_read()
        return self._total_memory

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self._total_memory // (1 << 20)}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"L2_cache_size={self.L2_cache_size // (1 << 20)}MB)"
        )


def _only_compares() -> bool:
    """Returns whether a file in `_ONLY_COMPARES` reads `total_memory`.

    These files are part of PyTorch. They use the size of a card's memory only for a warning or for
    the description of the card, and choose no batch size or buffer size by it.
    """
    reader = sys._getframe(2).f_code.co_filename
    return reader.endswith(_ONLY_COMPARES)


def _arch_flags(simulation: Simulation) -> str:
    """Returns the architectures of a build with kernels for all simulated cards, even old ones."""
    built = {75, 80, 86, 90, 100, 120}
    built |= {p.compute_capability[0] * 10 + p.compute_capability[1] for p in simulation.profiles}
    return " ".join([f"sm_{number}" for number in sorted(built)] + ["compute_120"])
