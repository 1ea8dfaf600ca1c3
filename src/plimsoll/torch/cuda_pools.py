"""Private pools of torch.cuda: memory pools and the captures of CUDA graphs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plimsoll.torch.simulation import Simulation


def pool_functions(simulation: Simulation) -> dict[str, Any]:
    """The names that `torch._C` has for them."""
    lib = simulation.library.lib
    allocators = simulation.allocators
    graph_ids, user_ids = itertools.count(1), itertools.count(1)

    def engine(index: int) -> Any:
        return allocators[index]._engine

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
                on.set_use_on_oom(*self._id, True)
            if no_split:
                on.set_no_split(*self._id)

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

        def __new__(cls, keep_graph: bool = False) -> Any:
            return super().__new__(cls)

        def capture_begin(
            self,
            pool: tuple[int, int] | None = None,
            capture_error_mode: str = "global",
        ) -> None:
            self._device = int(lib.plimsoll_current_device())
            self._pool: tuple[int, int] | None = pool or (next(graph_ids), 0)
            stream = int(lib.plimsoll_current_stream(self._device))
            engine(self._device).begin_allocate_to_pool(*self._pool, stream)
            simulation.set_capturing(self._device, on=True)

        def capture_end(self) -> None:
            simulation.set_capturing(self._device, on=False)
            engine(self._device).end_allocate_to_pool(*self._pool)  # type: ignore[misc]

        def instantiate(self) -> None:
            pass

        def replay(self) -> None:
            pass

        def reset(self) -> None:
            if getattr(self, "_pool", None) is not None and not simulation.is_over:
                engine(self._device).release_pool(*self._pool)  # type: ignore[misc]
            self._pool = None

        def __del__(self) -> None:
            CudaGraph.reset(self)

        def pool(self) -> Any:
            return self._pool

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
