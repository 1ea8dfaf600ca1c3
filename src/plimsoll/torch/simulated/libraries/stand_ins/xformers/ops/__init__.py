"""The operations of xformers that the stand-in has."""

from __future__ import annotations

from .fmha import (
    AttentionMask,
    AttentionOp,
    AttentionOpBase,
    MemoryEfficientAttentionCutlassOp,
    MemoryEfficientAttentionFlashAttentionOp,
    memory_efficient_attention,
)
from .fmha.attn_bias import (
    AttentionBias,
    LowerTriangularFromBottomRightMask,
    LowerTriangularMask,
)
from .swiglu_op import SwiGLU, swiglu
from .unbind import unbind

__all__ = [
    "AttentionBias", "AttentionMask", "AttentionOp", "AttentionOpBase",
    "LowerTriangularFromBottomRightMask", "LowerTriangularMask",
    "MemoryEfficientAttentionCutlassOp", "MemoryEfficientAttentionFlashAttentionOp", "SwiGLU",
    "memory_efficient_attention", "swiglu", "unbind",
]  # fmt: skip
