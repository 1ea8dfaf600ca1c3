"""Stands in for those operations of SGLang that allocate memory or have no fake implementation.

SGLang's other operations write to tensors of their callers, and allocate no memory.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.compiled.assumptions import assume
from plimsoll.torch.simulated.libraries.flash_attention_operations import attend, make_schedule
from plimsoll.torch.simulated.libraries.operations import unowned
from plimsoll.torch.simulated.libraries.source_kernels import UnknownKernels

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def stand_in_for_kernels(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads the module that compiles SGLang's kernels, and replaces those written in CUDA."""
    execute()
    load = module.load_jit

    @functools.wraps(load)
    def load_jit(*arguments: Any, **named: Any) -> Any:
        if not named.get("cuda_files"):
            return load(*arguments, **named)
        return UnknownKernels(" ".join(["sglang", *map(str, arguments)]))

    module.load_jit = load_jit  # type: ignore[attr-defined]


def tell_all_reduce(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads SGLang's own all-reduce, and notes for the report if SGLang has to use NCCL instead."""
    execute()
    begin = module.CustomAllReduceV2.__init__

    @functools.wraps(begin)
    def begin_or_tell(self: Any, *arguments: Any, **named: Any) -> None:
        try:
            begin(self, *arguments, **named)
        except Exception:
            assume(
                "sglang",
                "NCCL runs in place of SGLang's own all-reduce, and plimsoll does not count the "
                "buffers of SGLang's",
            )
            raise

    module.CustomAllReduceV2.__init__ = begin_or_tell


def _without(place: int, kernel: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `kernel` without argument number `place`, because `kernel` has no such parameter."""
    return kernel(*arguments[:place], *arguments[place + 1 :])


KERNELS: dict[str, Callable[..., Any]] = {
    "sgl_kernel::fwd": functools.partial(_without, 27, attend),
    "sgl_kernel::get_scheduler_metadata": functools.partial(_without, 19, make_schedule),
    "sgl_kernel::weak_ref_tensor": unowned,
}
