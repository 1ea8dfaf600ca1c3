"""The functions of torch.cuda for memory: statistics, settings, blocks without a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.compiled.graph_trees import graph_tree_functions
from plimsoll.torch.simulated.cuda_history import history_functions
from plimsoll.torch.simulated.pluggable import CudaAllocator, PluggableAllocator

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.engine.simulator.allocator import Allocator
    from plimsoll.torch.simulated.library import Counter
    from plimsoll.torch.simulated.simulation import Simulation


def memory_functions(
    simulation: Simulation, memory_info: Callable[[int], tuple[int, int]]
) -> dict[str, Any]:
    """Returns the members of `torch._C` for memory, by name.

    Args:
        simulation: The GPUs.
        memory_info: Returns the free bytes and all bytes of a device.
    """
    allocators = _Allocators(simulation)
    blocks = _RawBlocks(simulation)
    return {
        **_statistics_functions(allocators),
        **_pinned_functions(simulation),
        **_settings_functions(allocators),
        **history_functions(simulation),
        **graph_tree_functions(simulation, blocks.adopt),
        "_cuda_emptyCache": allocators.empty_cache,
        "_accelerator_emptyCache": allocators.empty_cache,
        "_accelerator_getMemoryInfo": memory_info,
        "_accelerator_isAllocatorInitialized": lambda: simulation.has_contexts,
        "_cuda_attach_out_of_memory_observer": simulation.out_of_memory_observers.append,
        "_cuda_cudaCachingAllocator_raw_alloc": blocks.allocate,
        "_cuda_cudaCachingAllocator_raw_delete": blocks.free,
        # These act as PyTorch's own functions act if the allocator keeps no metadata for blocks.
        "_cuda_memoryMetadataSupported": lambda: False,
        "_cuda_setMemoryMetadata": lambda metadata: None,
        "_cuda_getMemoryMetadata": lambda: "",
        "_cuda_annotateMemory": lambda pointer, metadata: None,
    }


class _Allocators:
    """The allocators of all devices, each found by its device's index."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self._allocators = simulation.allocators

    def of(self, index: int) -> Allocator:
        if not 0 <= index < len(self._allocators):
            raise RuntimeError(f"Invalid device argument {index}: did you call init?")
        return self._allocators[index]

    def empty_cache(self) -> None:
        for allocator in self._allocators:
            allocator.empty_cache()

    def statistics(self, index: int) -> dict[str, Any]:
        statistics = self.of(index).memory_stats()
        if self.simulation.is_caching_forbidden:  # PyTorch's allocator serves no request
            statistics = dict.fromkeys(statistics, 0)
        return _nested(statistics)

    def reset_peak(self, index: int) -> None:
        self.of(index).reset_peak_memory_stats()

    def reset_accumulated(self, index: int) -> None:
        self.of(index).reset_accumulated_memory_stats()

    def set_fraction(self, fraction: float, index: int) -> None:
        self.of(index)
        self.simulation.limit_memory(index, fraction)

    def fraction(self, index: int) -> float:
        self.of(index)
        return self.simulation.fractions[index]

    def change(self, _: object) -> None:
        """Installs plimsoll's allocator `uncached` in place of the program's own allocator.

        `uncached` passes each request to the driver.

        Raises:
            RuntimeError: If the present allocator has already served a request.
        """
        import torch

        if not self.simulation.take_allocator("uncached"):
            raise RuntimeError("Can't swap an already initialized allocator")
        torch.ops.plimsoll.assume(
            "torch.cuda.memory.change_current_allocator",
            "plimsoll assumes that the program's own allocator asks the driver for each request "
            "and keeps nothing",
        )

    def enable_caching(self, on: bool) -> None:
        if not on:
            raise NotImplementedError(
                "plimsoll does not simulate torch._C._cuda_cudaCachingAllocator_enable(False): "
                "simulate with --allocator uncached instead"
            )


class _RawBlocks:
    """The blocks that the program allocates and frees by address, without a tensor."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._devices: dict[int, int] = {}

    def adopt(self, address: int, device: int) -> None:
        """Adds a live block that no storage owns, so that `free` can free it by its address."""
        self._devices[address] = device

    def allocate(self, size: int, stream: int) -> int:
        device = int(self._simulation.library.lib.plimsoll_current_device())
        address = self._simulation.allocators[device].malloc(size, stream=stream)
        if address != 0:  # 0 is the address of 0 bytes
            self._devices[address] = device
        return address

    def free(self, address: int) -> None:
        if address == 0:
            return
        self._simulation.allocators[self._devices.pop(address)].free(address)


def _statistics_functions(allocators: _Allocators) -> dict[str, Any]:
    return {
        "_cuda_memoryStats": allocators.statistics,
        "_cuda_resetPeakMemoryStats": allocators.reset_peak,
        "_cuda_resetAccumulatedMemoryStats": allocators.reset_accumulated,
        "_accelerator_getDeviceStats": allocators.statistics,
        "_accelerator_resetPeakStats": allocators.reset_peak,
        "_accelerator_resetAccumulatedStats": allocators.reset_accumulated,
    }


def _settings_functions(allocators: _Allocators) -> dict[str, Any]:
    simulation = allocators.simulation
    return {
        "_cuda_setMemoryFraction": allocators.set_fraction,
        "_cuda_getMemoryFraction": allocators.fraction,
        "_cuda_cudaCachingAllocator_set_allocator_settings": simulation.configure,
        "_accelerator_setAllocatorSettings": simulation.configure,
        "_accelerator_getAllocatorSettings": lambda: simulation.last_settings,
        "_cuda_cudaCachingAllocator_enable": allocators.enable_caching,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_changeCurrentAllocator": allocators.change,
        "_cuda_CUDAAllocator": CudaAllocator,
        "_cuda_getAllocator": CudaAllocator,
        "_CUDAPluggableAllocator": PluggableAllocator,
        "_cuda_customAllocator": PluggableAllocator,
    }


def _pinned_functions(simulation: Simulation) -> dict[str, Any]:
    """Returns the functions for page-locked host memory, by name."""
    lib = simulation.library.lib

    def empty() -> None:
        lib.plimsoll_empty_pinned_pool()

    return {
        "_cuda_hostMemoryStats": lambda: _pinned_statistics(simulation),
        "_cuda_resetPeakHostMemoryStats": lambda: lib.plimsoll_reset_pinned_statistics(1),
        "_cuda_resetAccumulatedHostMemoryStats": lambda: lib.plimsoll_reset_pinned_statistics(0),
        "_host_emptyCache": empty,
        "_accelerator_emptyHostCache": empty,
    }


def _pinned_statistics(simulation: Simulation) -> dict[str, Any]:
    now = simulation.library.pinned_statistics()

    def counter(of: Counter) -> dict[str, int]:
        return {name: getattr(of, name) for name in ("current", "peak", "allocated", "freed")}

    def time(count: int) -> dict[str, int]:
        return {"total": 0, "max": 0, "min": 0, "count": count, "avg": 0}

    calls = now.allocations
    return {
        "num_host_alloc": calls.allocated,
        "num_host_free": calls.freed,
        "allocations": counter(calls),
        "active_requests": counter(now.active_requests),
        "allocated_bytes": counter(now.allocated_bytes),
        "active_bytes": counter(now.active_bytes),
        "host_alloc_time": time(calls.allocated),
        "host_free_time": time(calls.freed),
    }


def _nested(flat: dict[str, int]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested
