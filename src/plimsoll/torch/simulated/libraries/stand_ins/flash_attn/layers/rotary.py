"""flash-attn's rotary position embedding, in one kernel.

The code follows flash_attn/layers/rotary.py of flash-attn 2.8. The memory of the real kernels was
not measured.
"""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.torch.simulated.libraries.source_kernels import launch_kernel


class _Rotary(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, cos: Any, sin: Any, inplace: bool) -> Any:
        out = x if inplace else torch.empty_like(x)
        launch_kernel("flash_attn", "flash-attn 2.8.3", (x, cos, sin), (out,))
        ctx.save_for_backward(cos, sin)
        ctx.inplace = inplace
        if inplace:
            ctx.mark_dirty(x)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        cos, sin = ctx.saved_tensors
        made = gradient if ctx.inplace else torch.empty_like(gradient)
        launch_kernel("flash_attn", "flash-attn 2.8.3", (gradient, cos, sin), (made,))
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
    """Applies the rotary position embedding to queries or keys."""
    return _Rotary.apply(x, cos, sin, inplace)


apply_rotary_emb_func = apply_rotary_emb
