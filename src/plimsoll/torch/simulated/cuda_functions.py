"""What a CUDA build of PyTorch adds to `torch._C`, answered by the engine.

`torch.cuda` is written in Python on top of these functions, so with them in place all of it works
as it is, in a build without CUDA too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.cuda_collectives import collective_functions
from plimsoll.torch.simulated.cuda_libraries import library_functions
from plimsoll.torch.simulated.cuda_memory import memory_functions
from plimsoll.torch.simulated.cuda_missing import missing_class, missing_functions
from plimsoll.torch.simulated.cuda_pools import pool_functions
from plimsoll.torch.simulated.cuda_settings import setting_functions
from plimsoll.torch.simulated.cuda_streams import stream_functions

if TYPE_CHECKING:
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation


_ONLY_COMPARES = (
    "torch/nn/parallel/data_parallel.py",  # warns of cards of different sizes
    "torch/profiler/_chrome_trace_export.py",
)


class _DeviceProperties:
    """torch.cuda.get_device_properties() of a simulated GPU."""

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
        self.uuid = f"plimsoll-{index:08x}"
        self.pci_bus_id, self.pci_device_id, self.pci_domain_id = index + 1, 0, 0

    @property
    def total_memory(self) -> int:
        """In bytes."""
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
    """Whether PyTorch's own code reads a card's size, and sizes nothing by it."""
    reader = sys._getframe(2).f_code.co_filename
    return reader.endswith(_ONLY_COMPARES)


def _arch_flags(simulation: Simulation) -> str:
    """A build has kernels for the cards that it is run on, old ones too."""
    built = {75, 80, 86, 90, 100, 120}
    built |= {p.compute_capability[0] * 10 + p.compute_capability[1] for p in simulation.profiles}
    return " ".join([f"sm_{number}" for number in sorted(built)] + ["compute_120"])


def add_cuda_functions(c: ModuleType, simulation: Simulation) -> None:
    """Give `torch._C` the functions and types of a CUDA build."""
    lib = simulation.library.lib
    count = len(simulation.allocators)
    functions: dict[str, Any] = missing_functions(c)

    def use(index: int) -> None:
        if not 0 <= index < count:
            raise c.AcceleratorError(simulation.library.no_such_device(index))
        lib.plimsoll_use(index)

    def set_device(index: int) -> None:
        import torch

        if index >= 0 and lib.plimsoll_set_device(index) != 0:
            raise c.AcceleratorError(simulation.library.no_such_device(index))
        torch.cuda._lazy_init()
        use(int(lib.plimsoll_current_device()))

    def exchange_device(index: int) -> int:
        before = int(lib.plimsoll_current_device())
        if index < 0:
            return -1
        if index != before:
            set_device(index)
        return before

    def maybe_exchange_device(index: int) -> int:
        """Makes a device the current one, without a context if it has none."""
        if index not in simulation.contexts and 0 <= index < count:
            before = int(lib.plimsoll_current_device())
            lib.plimsoll_set_device(index)
            return before
        return exchange_device(index)

    def properties(index: int) -> _DeviceProperties:
        return _DeviceProperties(simulation, index)

    def initialize() -> None:
        import torch

        if count == 0:
            raise RuntimeError("No CUDA GPUs are available")
        simulation.read_environment()
        simulation.is_initialized = True
        lib.plimsoll_initialize()
        lib.plimsoll_default_generators(1)
        torch.cuda.default_generators = tuple(torch.Generator(f"cuda:{i}") for i in range(count))
        lib.plimsoll_default_generators(0)
        torch.cuda._get_device_properties = properties

    functions["_cuda_init"] = initialize
    functions["_cuda_getDeviceCount"] = lambda: count
    functions["_cuda_getDevice"] = lambda: int(lib.plimsoll_current_device())
    functions["_cuda_setDevice"] = set_device
    functions["_cuda_exchangeDevice"] = exchange_device
    functions["_cuda_maybeExchangeDevice"] = maybe_exchange_device
    functions["_cuda_canDeviceAccessPeer"] = lambda device, peer: device != peer
    functions["_cuda_isInBadFork"] = lambda: simulation.is_forked()
    functions["_cuda_getArchFlags"] = lambda: _arch_flags(simulation)
    functions["_cuda_getCompiledVersion"] = lambda: 13000
    functions["_cuda_hasPrimaryContext"] = lambda index: index in simulation.contexts
    functions["_has_cuda"] = True
    functions["_has_cudnn"] = True
    functions["_CudaDeviceProperties"] = _DeviceProperties
    functions["_CUuuid"] = type("_CUuuid", (), {"bytes": bytes(16)})
    functions["_tensors_data_ptrs_at_indices_equal"] = _are_at
    functions |= stream_functions(c, simulation, use, set_device)
    functions |= library_functions(simulation, use)
    functions |= memory_functions(simulation, functions["_cudart"].cudaMemGetInfo)
    functions |= setting_functions(simulation)
    functions |= collective_functions()
    functions |= pool_functions(simulation)
    for name, value in functions.items():
        setattr(c, name, value)
    if hasattr(c, "_aoti"):
        runner = "AOTIModelContainerRunnerCuda"
        setattr(c._aoti, runner, missing_class(runner, where="torch._C._aoti"))


def _are_at(tensors: list[Any], addresses: list[int | None], indices: list[int]) -> bool:
    """Whether tensors are where they were."""
    return all(tensors[index].data_ptr() == addresses[index] for index in indices)
