"""Private pools of torch.cuda: memory pools and the captures of CUDA graphs."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING, Any

from plimsoll import _core

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation


class _Seeds:
    """Where graphs read random numbers' seed and offset: two numbers for all graphs of a device.

    As CUDAGeneratorState::register_graph has them (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp): made
    for the first graph before its capture begins, on its stream, and freed with the last.
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


def pool_functions(simulation: Simulation) -> dict[str, Any]:
    """The names that `torch._C` has for them."""
    lib = simulation.library.lib
    allocators = simulation.allocators
    graph_ids, user_ids = itertools.count(1), itertools.count(1)
    captures: list[weakref.ref[Any]] = []  # the graphs that may be under way, the last begun last
    seeds = _Seeds()

    def engine(index: int) -> Any:
        return allocators[index].engine

    class MemPool:
        def __init__(
            self,
            allocator: Any = None,
            is_user_created: bool = True,
            use_on_oom: bool = False,
            no_split: bool = False,
        ) -> None:
            self.allocator = allocator
            self._id = (0, next(user_ids)) if is_user_created else (next(graph_ids), 0)
            self.device = int(lib.plimsoll_current_device())
            on = engine(self.device)
            on.begin_allocate_to_pool(*self._id, None)
            on.end_allocate_to_pool(*self._id)
            if use_on_oom:
                on.set_pool_option(*self._id, _core.PoolOption.use_on_oom, True)
            if no_split:
                on.set_pool_option(*self._id, _core.PoolOption.no_split, True)

        @property
        def id(self) -> tuple[int, int]:
            return self._id

        def use_count(self) -> int:
            return 1

        def __del__(self) -> None:
            if not simulation.is_over:
                engine(self.device).release_pool(*self._id)
                engine(self.device).empty_cache(*self._id)

    class CudaGraph:
        """A capture keeps the memory of its pool until it is reset; a replay asks for none."""

        _keeps_graph: bool
        _kept_pools: list[tuple[int, int]]
        _pool: tuple[int, int] | None = None
        _has_graph_exec = False
        _capture = 0
        """Its number; 0 for none."""
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
            self._device = int(lib.plimsoll_current_device())
            seeds.lend(self._device, id(self))
            self._pool = pool or (next(graph_ids), 0)
            stream = int(lib.plimsoll_current_stream(self._device))
            engine(self._device).begin_allocate_to_pool(*self._pool, stream)
            lib.plimsoll_forget_capture(self._capture)
            self._capture = simulation.set_capturing(self._device, on=True)
            engine(self._device).begin_graph_capture()
            self._is_under_way = True
            captures.append(weakref.ref(self))

        # From 2.14 on torch.cuda calls both halves.
        def capture_end_pre(self) -> None:
            self._is_under_way = False
            simulation.set_capturing(self._device, on=False)
            engine(self._device).end_graph_capture()
            engine(self._device).end_allocate_to_pool(*self._pool)  # type: ignore[misc]

        def capture_end_post(self) -> None:
            pass

        def capture_end(self) -> None:
            CudaGraph.capture_end_pre(self)
            self._has_graph_exec = not self._keeps_graph

        @staticmethod
        def get_currently_capturing_graph() -> Any:
            captures[:] = [ref for ref in captures if (graph := ref()) and graph._is_under_way]
            graph = captures[-1]() if captures else None
            if graph is None:
                raise RuntimeError("no CUDA graph is being captured")
            return graph

        def instantiate(self) -> None:
            self._has_graph_exec = True

        def replay(self) -> None:
            lib.plimsoll_replay(self._capture)

        def reset(self) -> None:
            if self._pool is not None and not simulation.is_over:
                if self._is_under_way:  # what was to be captured failed
                    CudaGraph.capture_end_pre(self)
                for pool in CudaGraph.pools(self):
                    engine(self._device).release_pool(*pool)
                seeds.take_back(self._device, id(self))
            lib.plimsoll_forget_capture(self._capture)
            self._capture = 0
            self._pool = None
            self._kept_pools.clear()
            self._has_graph_exec = False

        def __del__(self) -> None:
            CudaGraph.reset(self)

        # From 2.13 on torch.cuda.CUDAGraph has one of its own, and PyTorch's is C++'s.
        def __init_subclass__(cls) -> None:
            own = cls.__dict__.get("__del__")
            if own is not None:

                def end(self: Any) -> None:
                    own(self)
                    CudaGraph.reset(self)

                cls.__del__ = end  # type: ignore[method-assign]

        def pool(self) -> Any:
            return self._pool

        def pools(self) -> list[Any]:
            return [self._pool, *self._kept_pools]

        def _retain_pool(self, pool: tuple[int, int]) -> None:
            first, second = pool
            if (first, second) not in CudaGraph.pools(self):
                engine(self._device).use_pool(first, second)
                self._kept_pools.append((first, second))

        def register_generator_state(self, state: Any) -> None:
            pass

        def enable_debug_mode(self) -> None:
            pass

        def debug_dump(self, debug_path: str) -> None:
            pass

    def begin(index: int, pool: tuple[int, int]) -> None:
        engine(index).begin_allocate_to_pool(*pool, None)

    return {
        "_MemPool": MemPool,
        "_CUDAGraph": CudaGraph,
        "_graph_pool_handle": lambda: (0, next(user_ids)),
        "_cuda_isCurrentStreamCapturing": lambda: bool(simulation.capturing),
        "_cuda_beginAllocateToPool": begin,
        "_cuda_beginAllocateCurrentThreadToPool": begin,
        "_cuda_beginAllocateCurrentStreamToPool": begin,
        "_cuda_endAllocateToPool": lambda index, pool: engine(index).end_allocate_to_pool(*pool),
        "_cuda_releasePool": lambda index, pool: engine(index).release_pool(*pool),
    }
