"""Memory of torch.cuda: statistics, history, settings, raw blocks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.compiled.graph_trees import graph_tree_functions

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.simulator import Allocator
    from plimsoll.torch.simulated.library import Counter
    from plimsoll.torch.simulated.simulation import Simulation


def _nested(flat: dict[str, int]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return nested


def _check_option(what: str, given: str | None, known: list[str | None]) -> None:
    if given not in known:
        *most, last = ("None" if name is None else f"'{name}'" for name in known)
        raise RuntimeError(f"expected {what} to be {', '.join(most)}, or {last}")


def _host_statistics(simulation: Simulation) -> dict[str, Any]:
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


class _CudaAllocator:
    """torch._C._cuda_CUDAAllocator: which allocator serves; here it is always the engine."""


class _PluggableAllocator(_CudaAllocator):
    """An allocator of the program's own; its functions are for a real GPU and are not called."""

    def __init__(self, alloc_fn: int = 0, free_fn: int = 0) -> None:
        self.alloc_fn, self.free_fn = alloc_fn, free_fn

    def _ignore(self, function: int) -> None:
        """A further function of the program's, which would not be called either."""

    set_init_fn = set_reset_fn = set_memory_fraction_fn = set_base_alloc_fn = _ignore
    set_record_stream_fn = set_begin_allocate_to_pool = _ignore
    set_end_allocate_to_pool_fn = set_release_pool = _ignore


def load_no_allocator(memory: ModuleType) -> None:
    """Let `torch.cuda.memory` name a program's own allocator, whose library needs a GPU."""

    def start(self: Any, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        if not Path(path_to_so_file).exists():
            raise OSError(f"{path_to_so_file}: cannot open shared object file: No such file")
        self._allocator = _PluggableAllocator()

    memory.CUDAPluggableAllocator.__init__ = start


def memory_functions(
    simulation: Simulation, memory_info: Callable[[int], tuple[int, int]]
) -> dict[str, Any]:
    """The names that `torch._C` has for memory.

    Args:
        simulation: The GPUs.
        memory_info: What of a device's memory is free, and how much it has, in bytes.
    """
    lib = simulation.library.lib
    allocators = simulation.allocators
    functions: dict[str, Any] = {}

    def allocator_of(index: int) -> Allocator:
        if not 0 <= index < len(allocators):
            raise RuntimeError(f"Invalid device argument {index}: did you call init?")
        return allocators[index]

    def empty_cache() -> None:
        for allocator in allocators:
            allocator.empty_cache()

    def change_allocator(_: object) -> None:
        import torch

        if not simulation.take_allocator("uncached"):
            raise RuntimeError("Can't swap an already initialized allocator")
        torch.ops.plimsoll.assume(
            "torch.cuda.memory.change_current_allocator",
            "an allocator of the program's own is taken to ask the driver for each request, and to "
            "keep nothing",
        )

    def set_fraction(fraction: float, index: int) -> None:
        allocator_of(index)
        simulation.limit_memory(index, fraction)

    def get_fraction(index: int) -> float:
        allocator_of(index)
        return simulation.fractions[index]

    functions["_cuda_emptyCache"] = empty_cache
    functions["_cuda_hostMemoryStats"] = lambda: _host_statistics(simulation)
    functions["_cuda_resetPeakHostMemoryStats"] = lambda: lib.plimsoll_reset_pinned_statistics(1)
    functions["_cuda_resetAccumulatedHostMemoryStats"] = lambda: (
        lib.plimsoll_reset_pinned_statistics(0)
    )
    functions["_host_emptyCache"] = lambda: lib.plimsoll_empty_pinned_pool()
    functions["_cuda_memoryStats"] = lambda i: _nested(allocator_of(i).memory_stats())
    functions["_cuda_resetPeakMemoryStats"] = lambda i: allocator_of(i).reset_peak_memory_stats()
    functions["_cuda_resetAccumulatedMemoryStats"] = lambda i: allocator_of(
        i
    ).reset_accumulated_memory_stats()
    # torch.accelerator asks the same of any device.
    functions["_accelerator_isAllocatorInitialized"] = lambda: simulation.has_contexts
    functions["_accelerator_emptyCache"] = empty_cache
    functions["_accelerator_emptyHostCache"] = functions["_host_emptyCache"]
    functions["_accelerator_getDeviceStats"] = functions["_cuda_memoryStats"]
    functions["_accelerator_resetPeakStats"] = functions["_cuda_resetPeakMemoryStats"]
    functions["_accelerator_resetAccumulatedStats"] = functions["_cuda_resetAccumulatedMemoryStats"]
    functions["_accelerator_getMemoryInfo"] = memory_info
    functions["_cuda_setMemoryFraction"] = set_fraction
    functions["_cuda_getMemoryFraction"] = get_fraction
    functions["_cuda_getAllocatorBackend"] = lambda: "native"
    raw: dict[int, int] = {}

    def raw_alloc(size: int, stream: int) -> int:
        device = int(lib.plimsoll_current_device())
        address = allocators[device].malloc(size, stream=stream)
        raw[address] = device
        return address

    def raw_delete(address: int) -> None:
        allocators[raw.pop(address)].free(address)

    functions |= graph_tree_functions(simulation, raw.__setitem__)
    functions["_cuda_cudaCachingAllocator_raw_alloc"] = raw_alloc
    functions["_cuda_cudaCachingAllocator_raw_delete"] = raw_delete

    def record_history(
        enabled: str | None, context: str | None, stacks: str, max_entries: int, *rest: Any
    ) -> None:
        _check_option("state", enabled, ["state", "all", None])
        _check_option("context", context, ["state", "alloc", "all", None])
        _check_option("stacks", stacks, ["python", "all"])
        if len(rest) < 6 or rest[5]:  # from 2.14 on: not of pinned memory alone
            simulation.record_history(enabled, context, max_entries)

    def record_history_legacy(enabled: bool, *rest: Any, **_: Any) -> None:
        if len(rest) < 10 or rest[9]:
            simulation.record_history("all" if enabled else None, "all", 1 << 40)

    def snapshot(pool: tuple[int, ...] | None = None) -> dict[str, Any]:
        whole = simulation.snapshot()
        number = (0, 0) if pool is None else tuple(pool[:2])
        if number != (0, 0):
            whole["segments"] = [
                segment for segment in whole["segments"] if segment["segment_pool_id"] == number
            ]
        return whole

    functions["_cuda_record_memory_history"] = record_history
    functions["_cuda_record_memory_history_legacy"] = record_history_legacy
    # As allocators say that keep no metadata: what is given is ignored.
    functions["_cuda_memoryMetadataSupported"] = lambda: False
    functions["_cuda_setMemoryMetadata"] = lambda metadata: None
    functions["_cuda_getMemoryMetadata"] = lambda: ""
    functions["_cuda_annotateMemory"] = lambda pointer, metadata: None
    functions["_cuda_attach_out_of_memory_observer"] = simulation.out_of_memory_observers.append
    functions["_cuda_isHistoryEnabled"] = lambda: simulation.keeps_history
    functions["_cuda_memorySnapshot"] = snapshot

    def enable_caching(on: bool) -> None:
        if not on:
            raise NotImplementedError(
                "plimsoll does not simulate torch._C._cuda_cudaCachingAllocator_enable(False): "
                "simulate with --allocator uncached instead"
            )

    def traceback_of(address: int) -> list[dict[str, Any]] | None:
        if not simulation.keeps_history:
            return None
        for segment in simulation.snapshot()["segments"]:
            for block in segment["blocks"]:
                if block["address"] == address and block["state"] == "active_allocated":
                    frames: list[dict[str, Any]] | None = block.get("frames")
                    return frames
        return None

    functions["_cuda_cudaCachingAllocator_set_allocator_settings"] = simulation.configure
    functions["_accelerator_setAllocatorSettings"] = simulation.configure
    functions["_accelerator_getAllocatorSettings"] = lambda: simulation.last_settings
    functions["_cuda_cudaCachingAllocator_enable"] = enable_caching
    functions["_cuda_cudaCachingAllocator_is_enabled"] = lambda: True
    functions["_cuda_changeCurrentAllocator"] = change_allocator
    functions["_cuda_allocationTraceback"] = traceback_of
    functions["_cuda_CUDAAllocator"] = _CudaAllocator
    functions["_CUDAPluggableAllocator"] = _PluggableAllocator
    functions["_cuda_customAllocator"] = _PluggableAllocator
    functions["_cuda_getAllocator"] = _CudaAllocator
    return functions
