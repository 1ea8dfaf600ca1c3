"""The private pools of torch.cuda: MemPool, and CUDA graphs with their captures."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

from plimsoll import _core
from plimsoll.torch.simulated.pluggable import PluggableAllocator

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation


def pool_functions(simulation: Simulation) -> dict[str, Any]:
    """Returns the members of `torch._C` for pools and graphs, by name."""
    pools = _Pools(simulation)
    return {
        "_MemPool": type("MemPool", (_MemPool,), {"_pools": pools}),
        "_CUDAGraph": type("CudaGraph", (_CudaGraph,), {"_pools": pools}),
        "_graph_pool_handle": pools.new_user_pool,
        "_cuda_isCurrentStreamCapturing": lambda: bool(simulation.capturing),
        "_cuda_beginAllocateToPool": pools.begin,
        "_cuda_beginAllocateCurrentThreadToPool": pools.begin,
        "_cuda_beginAllocateCurrentStreamToPool": pools.begin,
        "_cuda_endAllocateToPool": pools.end,
        "_cuda_releasePool": pools.release,
    }


def give_source(
    simulation: Simulation, index: int, pool: tuple[int, int], allocator: PluggableAllocator
) -> None:
    """Makes a pool take its segments from a program's own allocator.

    Raises:
        NotImplementedError: If the GPUs' allocator is not `native`.
    """
    engine = simulation.allocators[index].engine
    try:
        engine.set_pool_source(*pool, allocator.alloc_fn, allocator.free_fn)
    except ValueError:
        serves = "wheel" if simulation.has_own_allocator else simulation.allocator
        raise NotImplementedError(
            "plimsoll simulates an allocator of the program's own (torch.cuda.MemPool(allocator), "
            f"or a library in LD_PRELOAD) only with --allocator native, not {serves}"
        ) from None


class _Pools:
    """The private pools and the captures of a process.

    Attributes:
        simulation: The GPUs.
        lib: The C functions of the simulated GPUs.
        seeds: The memory from which graphs read the state of the random number generator.
        captures: The graphs whose capture has begun, the oldest first. The list may still hold
            graphs whose capture has ended.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.lib = simulation.library.lib
        self.seeds = _Seeds()
        self.captures: list[weakref.ref[_CudaGraph]] = []
        self._graph_numbers, self._user_numbers = itertools.count(1), itertools.count(1)
        self._with_source: set[tuple[int, tuple[int, int]]] = set()

    def new_graph_pool(self) -> tuple[int, int]:
        return (next(self._graph_numbers), 0)

    def new_user_pool(self) -> tuple[int, int]:
        return (0, next(self._user_numbers))

    def current_device(self) -> int:
        return int(self.lib.plimsoll_current_device())

    def engine(self, device: int) -> _core.Engine:
        return self.simulation.allocators[device].engine

    def begin(self, index: int, pool: tuple[int, int]) -> None:
        self.begin_filtered(index, pool, None)

    def begin_filtered(self, index: int, pool: tuple[int, int], stream: int | None) -> None:
        """Sends requests to a pool from now on, and makes the pool if it does not exist.

        Args:
            index: The device.
            pool: The pool's id.
            stream: The stream whose requests the pool serves; None for all streams.
        """
        self.engine(index).begin_allocate_to_pool(*pool, stream)
        replaced = self.simulation.replaced_allocation
        if replaced is not None and (index, pool) not in self._with_source:
            self.give_source(index, pool, replaced)

    def end(self, index: int, pool: tuple[int, int]) -> None:
        self.engine(index).end_allocate_to_pool(*pool)

    def give_source(self, index: int, pool: tuple[int, int], allocator: PluggableAllocator) -> None:
        give_source(self.simulation, index, pool, allocator)
        self._with_source.add((index, pool))

    def release(self, index: int, pool: tuple[int, int]) -> None:
        self.engine(index).release_pool(*pool)


class _Seeds:
    """Holds two tensors for each device: the seed and the offset of its graphs' random numbers.

    All graphs of the device share them.

    CUDAGeneratorState::register_graph (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp) allocates both
    tensors on the first graph's stream, before the graph's capture begins. The tensors are freed
    with the last graph.
    """

    def __init__(self) -> None:
        self._graphs: dict[int, set[int]] = {}
        self._numbers: dict[int, list[Any]] = {}

    def lend(self, device: int, graph: int) -> None:
        import torch

        if not self._graphs.setdefault(device, set()):
            with torch._C._DisableTorchDispatch():
                self._numbers[device] = [
                    torch.empty(1, dtype=torch.int64, device=f"cuda:{device}") for _ in range(2)
                ]
        self._graphs[device].add(graph)

    def take_back(self, device: int, graph: int) -> None:
        self._graphs[device].discard(graph)
        if not self._graphs[device]:
            self._numbers.pop(device, None)


class _MemPool:
    """Stands in for torch.cuda.MemPool; a subclass sets `_pools`."""

    _pools: ClassVar[_Pools]

    def __init__(
        self,
        allocator: Any = None,
        is_user_created: bool = True,
        use_on_oom: bool = False,
        no_split: bool = False,
    ) -> None:
        self.allocator = allocator
        pools = self._pools
        self._id = pools.new_user_pool() if is_user_created else pools.new_graph_pool()
        self.device = pools.current_device()
        engine = pools.engine(self.device)
        pools.begin(self.device, self._id)
        pools.end(self.device, self._id)
        if isinstance(allocator, PluggableAllocator) and allocator.gives_memory:
            pools.give_source(self.device, self._id, allocator)
        if use_on_oom:
            engine.set_pool_option(*self._id, _core.PoolOption.use_on_oom, True)
        if no_split:
            engine.set_pool_option(*self._id, _core.PoolOption.no_split, True)

    @property
    def id(self) -> tuple[int, int]:
        return self._id

    def use_count(self) -> int:
        return 1

    def __del__(self) -> None:
        if not self._pools.simulation.is_over:
            engine = self._pools.engine(self.device)
            engine.release_pool(*self._id)
            engine.empty_cache(*self._id)


class _CudaGraph:
    """Stands in for torch.cuda.CUDAGraph; a subclass sets `_pools`.

    A graph keeps its pool's memory until the graph is reset. A replay requests no memory.
    """

    _pools: ClassVar[_Pools]
    _keeps_graph: bool
    _kept_pools: list[tuple[int, int]]
    _pool: tuple[int, int] | None = None
    _has_graph_exec = False
    _capture = 0
    """The number that plimsoll's C++ library gave to the capture; 0 without a capture."""
    _is_under_way = False

    def __new__(cls, keep_graph: bool = False) -> Any:
        graph = super().__new__(cls)
        graph._keeps_graph = keep_graph
        graph._kept_pools = []
        return graph

    def capture_begin(
        self,
        pool: tuple[int, int] | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        pools = self._pools
        self._device = pools.current_device()
        pools.seeds.lend(self._device, id(self))
        self._pool = pool or pools.new_graph_pool()
        stream = int(pools.lib.plimsoll_current_stream(self._device))
        engine = pools.engine(self._device)
        pools.begin_filtered(self._device, self._pool, stream)
        pools.lib.plimsoll_forget_capture(self._capture)
        self._capture = pools.simulation.set_capturing(self._device, on=True)
        engine.begin_graph_capture()
        self._is_under_way = True
        pools.captures.append(weakref.ref(self))

    # PyTorch 2.14 and later call `capture_end_pre` and `capture_end_post`, not `capture_end`.
    def capture_end_pre(self) -> None:
        self._is_under_way = False
        self._pools.simulation.set_capturing(self._device, on=False)
        engine = self._pools.engine(self._device)
        engine.end_graph_capture()
        engine.end_allocate_to_pool(*self._pool)  # type: ignore[misc]

    def capture_end_post(self) -> None:
        if not self._keeps_graph:
            _CudaGraph.instantiate(self)

    def capture_end(self) -> None:
        _CudaGraph.capture_end_pre(self)
        _CudaGraph.capture_end_post(self)

    @classmethod
    def get_currently_capturing_graph(cls) -> Any:
        captures = cls._pools.captures
        captures[:] = [ref for ref in captures if (graph := ref()) and graph._is_under_way]
        graph = captures[-1]() if captures else None
        if graph is None:
            raise RuntimeError("no CUDA graph is being captured")
        return graph

    def instantiate(self) -> None:
        self._pools.simulation.add_graph(id(self), self._device, self._capture)
        self._has_graph_exec = True

    def replay(self) -> None:
        self._pools.lib.plimsoll_replay(self._capture)

    def reset(self) -> None:
        pools = self._pools
        if self._pool is not None and not pools.simulation.is_over:
            if self._is_under_way:  # the capture failed
                _CudaGraph.capture_end_pre(self)
            for pool in _CudaGraph.pools(self):
                pools.release(self._device, pool)
            pools.seeds.take_back(self._device, id(self))
        pools.simulation.graphs.remove(id(self))
        pools.lib.plimsoll_forget_capture(self._capture)
        self._capture = 0
        self._pool = None
        self._kept_pools.clear()
        self._has_graph_exec = False

    def __del__(self) -> None:
        _CudaGraph.reset(self)

    # From PyTorch 2.13 on, torch.cuda.CUDAGraph has its own `__del__`, which does not call the
    # `__del__` above. So this method replaces the subclass's `__del__` by a function that also
    # resets the graph.
    def __init_subclass__(cls) -> None:
        own = cls.__dict__.get("__del__")
        if own is not None:

            def end(self: Any) -> None:
                own(self)
                _CudaGraph.reset(self)

            cls.__del__ = end  # type: ignore[method-assign]

    def pool(self) -> Any:
        return self._pool

    def pools(self) -> list[Any]:
        return [self._pool, *self._kept_pools]

    def _retain_pool(self, pool: tuple[int, int]) -> None:
        first, second = pool
        if (first, second) not in _CudaGraph.pools(self):
            self._pools.engine(self._device).use_pool(first, second)
            self._kept_pools.append((first, second))

    def register_generator_state(self, state: Any) -> None:
        pass

    def enable_debug_mode(self) -> None:
        pass

    def debug_dump(self, debug_path: str) -> None:
        pass
