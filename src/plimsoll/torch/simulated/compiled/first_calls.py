"""Records the actions for which the first call of compiled code needs extra memory.

An example is tuning kernels. For each action, the range of events during the action is recorded.
"""

from __future__ import annotations

import functools
import gc
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

PLACES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "torch._inductor.select_algorithm": (
        ("tuning products", "AlgorithmSelectorCache.benchmark_in_current_process"),
    ),
    "torch._inductor.codegen.triton": (
        ("trying what to fuse", "TritonScheduling.benchmark_codegened_module"),
    ),
    "torch._inductor.runtime.triton_heuristics": (
        ("tuning kernels", "CachingAutotuner.benchmark_all_configs"),
    ),
    "torch._inductor.fx_passes.pad_mm": (("trying padded products", "_should_pad"),),
    "torch._inductor.constant_folding": (("folding constants", "constant_fold"),),
    "torch._inductor.cudagraph_trees": (
        ("copying inputs of CUDA graphs", "CUDAGraphNode._allocate_and_copy_recording_inputs"),
    ),
}
"""For each PyTorch module: pairs of an action and the name of the function that does it."""
_TRIES = ("tuning products", "trying what to fuse")


@dataclass(frozen=True)
class FirstCall:
    """An action of a compiled function's first call, and the events during it.

    Attributes:
        what: The action, such as "tuning kernels".
        began: For each device, the number of events before the action.
        ended: For each device, the number of events at the action's end.
    """

    what: str
    began: tuple[int, ...]
    ended: tuple[int, ...]


class FirstCalls:
    """Notes when the actions of first calls begin and end.

    Args:
        events: A function that returns the number of events so far, for each device.
    """

    def __init__(self, events: Callable[[], tuple[int, ...]]) -> None:
        self.all: list[FirstCall] = []
        self._events = events

    def watch(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Loads one of the modules in `PLACES`, and watches those of its functions that exist."""
        execute()
        for what, name in PLACES[module.__name__]:
            holder: Any = module
            *path, last = name.split(".")
            for part in path:
                holder = getattr(holder, part, None)
            if holder is not None and hasattr(holder, last):
                given = inspect.getattr_static(holder, last)
                function = getattr(given, "__func__", given)
                noted = self._noted(what, function)
                kind = type(given)
                is_plain = given is function
                setattr(holder, last, noted if is_plain else kind(noted))

    def _noted(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            # Reference cycles keep tensors of earlier tries alive until Python collects garbage.
            # When Python does so depends on how much code earlier runs have compiled. Collecting
            # here makes the memory the same in all runs.
            if what in _TRIES:
                gc.collect()
            began = self._events()
            try:
                return function(*arguments, **named)
            finally:
                self.all.append(FirstCall(what, began, self._events()))

        return call
