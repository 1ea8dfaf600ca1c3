"""What a CUDA build of PyTorch adds to `torch._C`, answered by the engine.

`torch.cuda` is written in Python on top of these functions, so with them in place all of it works
as it is, in a build without CUDA too.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.cuda_pools import pool_functions

if TYPE_CHECKING:
    from collections.abc import Callable

    from plimsoll.simulator import Allocator
    from plimsoll.torch.simulated.library import Counter
    from plimsoll.torch.simulated.simulation import Simulation

_STATISTICS_WITHOUT_POOLS = frozenset({"oversize_allocations", "oversize_segments"})


class _DeviceProperties:
    """torch.cuda.get_device_properties() of a simulated GPU."""

    def __init__(self, simulation: Simulation, index: int) -> None:
        profile = simulation.profiles[index]
        self.name = profile.full_name
        self.major, self.minor = profile.compute_capability
        self.total_memory = profile.total_bytes
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

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // (1 << 20)}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"L2_cache_size={self.L2_cache_size // (1 << 20)}MB)"
        )


def _arch_flags(simulation: Simulation) -> str:
    """A build has kernels for the cards that it is run on, old ones too."""
    built = {75, 80, 86, 90, 100, 120}
    built |= {p.compute_capability[0] * 10 + p.compute_capability[1] for p in simulation.profiles}
    return " ".join([f"sm_{number}" for number in sorted(built)] + ["compute_120"])


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


def _module(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(members)
    return module


def _cudart(simulation: Simulation, use: Callable[[int], None]) -> ModuleType:
    lib = simulation.library.lib

    class CudaError(int):
        success = 0

    def mem_get_info(index: int) -> tuple[int, int]:
        use(index)
        return simulation.allocators[index].mem_get_info()

    return _module(
        "torch._C._cudart",
        cudaError=CudaError,
        cudaGetErrorString=lambda code: f"error {code}",
        cudaMemGetInfo=mem_get_info,
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
        cudaHostRegister=lambda address, size, flags: CudaError(lib.plimsoll_pin(address, size)),
        cudaHostUnregister=lambda address: CudaError(lib.plimsoll_unpin(address)),
        cudaDeviceSynchronize=lambda: 0,
    )


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


def _collectives(c: ModuleType) -> dict[str, Any]:
    """What torch.nn.DataParallel needs between the devices of one process."""

    def broadcast(tensor: Any, devices: list[int]) -> list[Any]:
        return [tensor.to(f"cuda:{device}") for device in devices]

    def broadcast_coalesced(tensors: list[Any], devices: list[int], _: int) -> list[list[Any]]:
        return [[tensor.to(f"cuda:{device}") for tensor in tensors] for device in devices]

    def scatter(
        tensor: Any, devices: list[int], sizes: list[int] | None, dim: int, streams: Any
    ) -> tuple[Any, ...]:
        parts = tensor.split(sizes, dim) if sizes else tensor.chunk(len(devices), dim)
        return tuple(p.to(f"cuda:{d}") for p, d in zip(parts, devices, strict=False))

    def gather(tensors: list[Any], dim: int, destination: int | None) -> Any:
        import torch

        device = "cpu" if destination == -1 else f"cuda:{destination or 0}"
        return torch.cat([tensor.to(device) for tensor in tensors], dim)

    return {
        "_broadcast": broadcast,
        "_broadcast_coalesced": broadcast_coalesced,
        "_scatter": scatter,
        "_gather": gather,
    }


def _can_use_attention(kernel: int, inputs: Any, debug: bool = False) -> bool:
    """As torch._C._can_use_flash_attention and the like, by PyTorch's number of the kernel."""
    del debug  # reasons are not given
    import torch

    where = (inputs.query, inputs.key, inputs.value, inputs.attn_mask)
    how = (inputs.dropout, inputs.is_causal, inputs.enable_gqa)
    return bool(torch.ops.plimsoll.can_use_attention(*where, *how, kernel))


def add_cuda_functions(c: ModuleType, simulation: Simulation) -> None:
    """Give `torch._C` the functions and types of a CUDA build."""
    lib = simulation.library.lib
    count = len(simulation.allocators)
    allocators = simulation.allocators
    functions: dict[str, Any] = {}

    def use(index: int) -> None:
        if not 0 <= index < count:
            raise c.AcceleratorError(simulation.library.no_such_device(index))
        lib.plimsoll_use(index)

    def allocator_of(index: int) -> Allocator:
        if not 0 <= index < count:
            raise RuntimeError(f"Invalid device argument {index}: did you call init?")
        return allocators[index]

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

    def properties(index: int) -> _DeviceProperties:
        return _DeviceProperties(simulation, index)

    def initialize() -> None:
        import torch

        if count == 0:
            raise RuntimeError("No CUDA GPUs are available")
        simulation.read_environment()
        lib.plimsoll_initialize()
        lib.plimsoll_default_generators(1)
        torch.cuda.default_generators = tuple(torch.Generator(f"cuda:{i}") for i in range(count))
        lib.plimsoll_default_generators(0)
        torch.cuda._get_device_properties = properties
        use(int(lib.plimsoll_current_device()))

    functions["_cuda_init"] = initialize
    functions["_cuda_getDeviceCount"] = lambda: count
    functions["_cuda_getDevice"] = lambda: int(lib.plimsoll_current_device())
    functions["_cuda_setDevice"] = set_device
    functions["_cuda_exchangeDevice"] = exchange_device
    functions["_cuda_maybeExchangeDevice"] = exchange_device
    functions["_cuda_canDeviceAccessPeer"] = lambda device, peer: device != peer
    functions["_cuda_isInBadFork"] = lambda: simulation.is_forked()
    functions["_cuda_getArchFlags"] = lambda: _arch_flags(simulation)
    functions["_cuda_getCompiledVersion"] = lambda: 13000
    functions["_cuda_hasPrimaryContext"] = lambda index: index in simulation.contexts
    functions["_cudart"] = _cudart(simulation, use)
    functions["_has_cuda"] = True
    functions["_has_cudnn"] = True
    functions["_CudaDeviceProperties"] = _DeviceProperties

    # Streams and events: torch.Stream and torch.Event do the work, through the device guard.
    device_type = 1

    class CudaStreamBase(c.Stream):  # type: ignore[misc, name-defined]
        def __new__(
            cls,
            priority: int = 0,
            stream_id: int = 0,
            device_index: int = 0,
            device_type: int = 0,
            stream_ptr: int = 0,
        ) -> Any:
            if stream_ptr:
                stream_id = stream_ptr
            if stream_id or device_index or device_type:
                return super().__new__(
                    cls, stream_id=stream_id, device_index=device_index, device_type=1
                )
            device = int(lib.plimsoll_current_device())
            return super().__new__(cls, device=f"cuda:{device}", priority=priority)

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        @property
        def priority(self) -> int:
            return -1 if self.stream_id & 2 else 0

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return (0, -5)

    class CudaEventBase(c.Event):  # type: ignore[misc, name-defined]
        def __new__(
            cls,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> Any:
            event = super().__new__(
                cls,
                "cuda",
                enable_timing=enable_timing,
                blocking=blocking,
                interprocess=interprocess,
            )
            event._timer = c.Event("cuda", enable_timing=True) if enable_timing else None
            return event

        # torch.Event measures up to an event of its own class only.
        def record(self, stream: Any = None) -> None:
            super().record(stream)
            if self._timer is not None:
                self._timer.record(stream)

        def elapsed_time(self, end_event: Any) -> float:
            if self._timer is None or end_event._timer is None:
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            return float(self._timer.elapsed_time(end_event._timer))

        @property
        def cuda_event(self) -> int:
            return int(self.event_id)

    functions["_CudaStreamBase"] = CudaStreamBase
    functions["_CudaEventBase"] = CudaEventBase

    def stream_data(index: int, stream: int) -> tuple[int, int, int]:
        return stream, index, device_type

    def current(index: int) -> int:
        return int(lib.plimsoll_current_stream(index))

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        if int(lib.plimsoll_current_device()) != device_index:
            set_device(device_index)
        lib.plimsoll_set_stream(device_index, stream_id)

    functions["_cuda_getCurrentStream"] = lambda index: stream_data(index, current(index))
    functions["_cuda_getCurrentRawStream"] = current
    functions["_cuda_getDefaultStream"] = lambda index: stream_data(index, 0)
    functions["_cuda_getStreamFromExternal"] = lambda pointer, index: stream_data(index, pointer)
    functions["_cuda_setStream"] = set_stream

    def synchronize() -> None:
        device = int(lib.plimsoll_current_device())
        if device in simulation.capturing:
            raise c.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
        allocators[device].gpu.synchronize()

    functions["_cuda_synchronize"] = synchronize
    functions["_cuda_ipc_collect"] = lambda: None
    functions["_cuda_sleep"] = lambda cycles: allocators[
        int(lib.plimsoll_current_device())
    ].gpu.launch(current(int(lib.plimsoll_current_device())), cycles * 1e-9)
    functions["_cuda_set_sync_debug_mode"] = lambda mode: None
    functions["_cuda_get_sync_debug_mode"] = lambda: 0
    functions["_cuda_getCurrentBlasHandle"] = lambda: 1
    functions["_cuda_clearCublasWorkspaces"] = lambda: lib.plimsoll_clear_blas_workspaces()

    # Memory.
    def empty_cache() -> None:
        for allocator in allocators:
            allocator.empty_cache()

    def set_fraction(fraction: float, index: int) -> None:
        allocator_of(index).set_per_process_memory_fraction(fraction)
        simulation.fractions[index] = fraction

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
    functions["_accelerator_getMemoryInfo"] = functions["_cudart"].cudaMemGetInfo
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
    functions["_cuda_get_cudnn_benchmark_limit"] = lambda: 10
    functions["_cuda_set_cudnn_benchmark_limit"] = lambda limit: None
    functions["_cudnn"] = _module(
        "torch._C._cudnn",
        is_cuda=True,
        RNNMode=IntEnum("RNNMode", ["rnn_relu", "rnn_tanh", "lstm", "gru"], start=0),
        getVersionInt=lambda: 91900,
        getRuntimeVersion=lambda: (9, 19, 0),
        getCompileVersion=lambda: (9, 19, 0),
    )
    nothing = {
        name: lambda *_: 0
        for name in ("rangePushA", "rangePop", "rangeStartA", "rangeEnd", "markA")
    }
    functions["_nvtx"] = _module("torch._C._nvtx", **nothing)
    for name, kernel in (("flash", 1), ("mem_efficient", 2), ("cudnn", 3)):
        functions[f"_can_use_{name}_attention"] = partial(_can_use_attention, kernel)
    functions["_cuda_tunableop_is_enabled"] = lambda: False
    functions |= _collectives(c)

    def set_settings(conf: str) -> None:
        if not simulation.configure(conf):
            print(
                "plimsoll: allocator settings made after the first use are ignored", file=sys.stderr
            )

    functions["_cuda_cudaCachingAllocator_set_allocator_settings"] = set_settings
    functions["_accelerator_setAllocatorSettings"] = set_settings
    functions["_cuda_CUDAAllocator"] = type("_cuda_CUDAAllocator", (), {})
    functions["_CUDAGreenContext"] = type("_CUDAGreenContext", (), {})
    functions |= pool_functions(simulation)
    for name, value in functions.items():
        setattr(c, name, value)
