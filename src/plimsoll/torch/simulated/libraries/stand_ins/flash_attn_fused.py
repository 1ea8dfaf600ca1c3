"""What flash-attn fuses besides attention: rotary positions and the cross entropy of many classes.

Read from flash_attn/layers/rotary.py and ops/triton/cross_entropy.py of flash-attn 2.8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def _launch(read: Any, *written: Any) -> None:
    moved = sum(one.nbytes for one in (*read, *written))
    torch.ops.plimsoll.launch(list(written), moved, [], [], torch.float32)


class _Rotary(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, cos: Any, sin: Any, inplace: bool) -> Any:
        out = x if inplace else torch.empty_like(x)
        _launch((x, cos, sin), out)
        ctx.save_for_backward(cos, sin)
        ctx.inplace = inplace
        if inplace:
            ctx.mark_dirty(x)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        cos, sin = ctx.saved_tensors
        made = gradient if ctx.inplace else torch.empty_like(gradient)
        _launch((gradient, cos, sin), made)
        return made, None, None, None


def apply_rotary_emb(
    x: Any,
    cos: Any,
    sin: Any,
    interleaved: bool = False,  # noqa: ARG001
    inplace: bool = False,
    seqlen_offsets: Any = 0,  # noqa: ARG001
    cu_seqlens: Any = None,  # noqa: ARG001
    max_seqlen: int | None = None,  # noqa: ARG001
) -> Any:
    """Positions, turned into queries or keys."""
    return _Rotary.apply(x, cos, sin, inplace)


apply_rotary_emb_func = apply_rotary_emb


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any, inplace_backward: bool) -> Any:
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        losses, logarithms, squares = (
            logits.new_empty(logits.shape[0], dtype=torch.float32) for _ in range(3)
        )
        _launch((logits, labels), losses, logarithms, squares)
        ctx.save_for_backward(logits, logarithms, labels)
        ctx.mark_non_differentiable(squares)
        ctx.inplace_backward = inplace_backward
        return losses, squares

    @staticmethod
    def backward(ctx: Any, gradient: Any, _: Any) -> Any:
        logits, logarithms, labels = ctx.saved_tensors
        made = logits if ctx.inplace_backward else torch.empty_like(logits)
        _launch((gradient, logits, logarithms, labels), made)
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
    """The losses of rows, and what keeps their logarithms small."""
    if process_group is not None:
        raise NotImplementedError(
            "plimsoll's stand-in for flash_attn has no cross entropy over several processes"
        )
    return _CrossEntropy.apply(logits, labels, inplace_backward)


class CrossEntropyLoss(nn.Module):  # type: ignore[misc]
    """The same as a module."""

    def __init__(
        self,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        logit_scale: float = 1.0,
        lse_square_scale: float = 0.0,
        inplace_backward: bool = False,
        process_group: Any = None,
        return_z_loss: bool = False,
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing, self.logit_scale = label_smoothing, logit_scale
        self.lse_square_scale, self.inplace_backward = lse_square_scale, inplace_backward
        self.process_group, self.return_z_loss = process_group, return_z_loss

    def forward(self, input: Any, target: Any, precomputed_lse: Any = None) -> Any:  # noqa: A002
        """The loss of rows of numbers, by their labels."""
        made = cross_entropy_loss(
            input,
            target,
            precomputed_lse,
            inplace_backward=self.inplace_backward,
            process_group=self.process_group,
        )
        losses = [self._reduced(one, target) for one in made[: 1 + self.return_z_loss]]
        return tuple(losses) if self.return_z_loss else losses[0]

    def _reduced(self, losses: Any, target: Any) -> Any:
        if self.reduction == "mean":
            return losses.sum() / (target != self.ignore_index).sum()
        return losses.sum() if self.reduction == "sum" else losses
