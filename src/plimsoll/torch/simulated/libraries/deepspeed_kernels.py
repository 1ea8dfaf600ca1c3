"""Stands in for the optimizers that DeepSpeed compiles for a GPU at their first use.

The fused kernels update lists of tensors in place and allocate nothing, according to csrc/adam,
csrc/lion and deepspeed/ops of DeepSpeed 0.19. This was not measured.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from plimsoll.torch.simulated.libraries.cuda_extensions import cuda_sources, refuse_extension
from plimsoll.torch.simulated.libraries.source_kernels import note_kernel

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def _update(chunk_size: int, overflow: Any, lists: list[list[Any]], *_: Any) -> None:  # noqa: ARG001
    """Launches a kernel that updates tensors in place.

    `lists` has the gradients first, and then one list for each kind of tensor that is updated.
    """
    import torch

    note_kernel("deepspeed", "DeepSpeed 0.19")
    gradients, *written = lists
    moved = sum(each.nbytes for each in gradients)
    moved += 2 * sum(each.nbytes for tensors in written for each in tensors)
    changed = [each for tensors in written for each in tensors]
    torch.ops.plimsoll.launch(changed, moved, [], [], torch.float32)


class _HostAdam:
    """Computes Adam on the host with PyTorch's operations, in place of DeepSpeed's C++ code."""

    def __init__(self) -> None:
        self._is_decoupled: dict[int, bool] = {}

    def create_adam(
        self,
        number: int,
        lr: float,  # noqa: ARG002
        beta1: float,  # noqa: ARG002
        beta2: float,  # noqa: ARG002
        eps: float,  # noqa: ARG002
        weight_decay: float,  # noqa: ARG002
        adamw_mode: bool,
        should_log: bool,  # noqa: ARG002
    ) -> int:
        self._is_decoupled[number] = bool(adamw_mode)
        return 0

    def destroy_adam(self, number: int) -> int:
        self._is_decoupled.pop(number, None)
        return 0

    def adam_update(
        self,
        number: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        parameters: Any,
        gradients: Any,
        averages: Any,
        squares: Any,
    ) -> int:
        import torch

        with torch.no_grad():
            gradients = gradients.to(averages.dtype)
            if weight_decay and self._is_decoupled[number]:
                parameters.mul_(1 - lr * weight_decay)
            elif weight_decay:
                gradients = gradients.add(parameters, alpha=weight_decay)
            averages.mul_(beta1).add_(gradients, alpha=1 - beta1)
            squares.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
            first = 1 - beta1**step if bias_correction else 1.0
            second = 1 - beta2**step if bias_correction else 1.0
            root = squares.sqrt().div_(math.sqrt(second)).add_(eps)
            parameters.addcdiv_(averages.to(parameters.dtype), root, value=-lr / first)
        return 0


_KERNELS: dict[str, Callable[[], Any]] = {
    "fused_adam": lambda: SimpleNamespace(multi_tensor_adam=_update),
    "fused_lion": lambda: SimpleNamespace(multi_tensor_lion=_update),
    "cpu_adam": _HostAdam,
}
"""Maps DeepSpeed's name for a compiled module to a function that makes the module's stand-in."""


def stand_in_for_kernels(module: ModuleType, execute: Callable[[], None]) -> None:
    """Loads `deepspeed.ops.op_builder.builder`, and makes it return stand-ins."""
    execute()
    loaded: dict[str, Any] = {}
    load = module.OpBuilder.load

    def load_simulated(self: Any, verbose: bool = False) -> Any:
        if self.name not in _KERNELS:
            files = cuda_sources(self.sources())
            if files:
                refuse_extension(f"deepspeed.{self.name}", files)
            return load(self, verbose)
        if self.name not in loaded:
            loaded[self.name] = _KERNELS[self.name]()
        return loaded[self.name]

    module.OpBuilder.load = load_simulated
