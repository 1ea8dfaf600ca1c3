"""flash-attn's cross entropy for many classes, in one kernel.

The code follows flash_attn/ops/triton/cross_entropy.py of flash-attn 2.8. The memory of the real
kernels was not measured.
"""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.torch.simulated.libraries.source_kernels import launch_kernel


def _launch(read: Any, written: Any) -> None:
    launch_kernel("flash_attn", "flash-attn 2.8.3", read, written)


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any, inplace_backward: bool) -> Any:
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        losses, logarithms, squares = (
            logits.new_empty(logits.shape[0], dtype=torch.float32) for _ in range(3)
        )
        launch_kernel(
            "flash_attn",
            "flash-attn 2.8.3",
            (logits, labels),
            (
                losses,
                logarithms,
                squares,
            ),
        )
        ctx.save_for_backward(logits, logarithms, labels)
        ctx.mark_non_differentiable(squares)
        ctx.inplace_backward = inplace_backward
        return losses, squares

    @staticmethod
    def backward(ctx: Any, gradient: Any, _: Any) -> Any:
        logits, logarithms, labels = ctx.saved_tensors
        made = logits if ctx.inplace_backward else torch.empty_like(logits)
        launch_kernel(
            "flash_attn", "flash-attn 2.8.3", (gradient, logits, logarithms, labels), (made,)
        )
        return made, None, None


def cross_entropy_loss(
    logits: Any,
    labels: Any,
    precomputed_lse: Any = None,  # noqa: ARG001
    label_smoothing: float = 0.0,  # noqa: ARG001
    logit_scale: float = 1.0,  # noqa: ARG001
    lse_square_scale: float = 0.0,  # noqa: ARG001
    ignore_index: int = -100,  # noqa: ARG001
    inplace_backward: bool = False,
    process_group: Any = None,
) -> Any:
    """Returns for each row the loss and the z-loss (a penalty for large logits)."""
    if process_group is not None:
        raise NotImplementedError(
            "plimsoll's stand-in for flash_attn has no cross entropy over several processes"
        )
    return _CrossEntropy.apply(logits, labels, inplace_backward)
