"""xformers' attention.

The code follows xformers/ops/fmha of xformers 0.0.33. The memory of the real kernels was not
measured. Like xformers, this module calls flash-attn's kernels if the tensors have half precision
and there is either no mask or one of xformers' own masks. Otherwise it calls PyTorch's kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from plimsoll.torch.simulated.libraries.source_kernels import note_kernel
from plimsoll.torch.simulated.libraries.stand_ins import flash_attn_2_cuda as flash

from .attn_bias import AttentionBias, BlockDiagonalMask


class _Flash(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any, p: float, scale: float) -> Any:
        causal = mask is not None and mask.is_causal
        ctx.how = {
            "p_dropout": p,
            "softmax_scale": scale,
            "is_causal": causal,
            "window_size_left": -1,
            "window_size_right": 0 if causal else -1,
            "softcap": 0.0,
        }
        ctx.lengths = _lengths(mask, q.device)
        kept: dict[str, Any] = {"out": None, "alibi_slopes": None, "return_softmax": False}
        if ctx.lengths is None:
            out, logarithms, _, state = flash.fwd(q, k, v, **kept, **ctx.how)
        else:
            q, k, v = (one.flatten(0, 1) for one in (q, k, v))
            rest: dict[str, Any] = {"seqused_k": None, "leftpad_k": None, "block_table": None}
            out, logarithms, _, state = flash.varlen_fwd(
                q, k, v, **kept, **rest, **ctx.lengths, **ctx.how
            )
        ctx.save_for_backward(q, k, v, out, logarithms, state)
        return out if ctx.lengths is None else out.unsqueeze(0)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        q, k, v, out, logarithms, state = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        rest = {"alibi_slopes": None, "deterministic": False, "rng_state": state, **ctx.how}
        if ctx.lengths is None:
            flash.bwd(gradient, q, k, v, out, logarithms, dq, dk, dv, **rest)
            return dq, dk, dv, None, None, None
        gradient = gradient.flatten(0, 1)
        flash.varlen_bwd(gradient, q, k, v, out, logarithms, dq, dk, dv, **ctx.lengths, **rest)
        return (*(one.unsqueeze(0) for one in (dq, dk, dv)), None, None, None)


def _lengths(mask: Any, device: Any) -> dict[str, Any] | None:
    """Returns the kernels' arguments for the lengths of packed sequences.

    Returns None if the mask is not one for packed sequences.
    """
    if not isinstance(mask, BlockDiagonalMask):
        return None
    of_queries, of_keys = mask.q_seqinfo, mask.k_seqinfo
    of_queries.to(device)
    of_keys.to(device)
    return {
        "cu_seqlens_q": of_queries.seqstart,
        "cu_seqlens_k": of_keys.seqstart,
        "max_seqlen_q": of_queries.max_seqlen,
        "max_seqlen_k": of_keys.max_seqlen,
        "zero_tensors": False,
    }


def _fits_flash(query: Any, bias: Any) -> bool:
    is_half = query.dtype in (torch.float16, torch.bfloat16)
    is_new = torch.cuda.get_device_capability(query.device)[0] >= 8
    fits = query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    return is_half and is_new and fits and (bias is None or isinstance(bias, AttentionBias))


def memory_efficient_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,  # noqa: ARG001
    output_dtype: Any = None,  # noqa: ARG001
) -> Any:
    """Computes attention over tensors of batch x rows x heads x width, or batch x rows x width."""
    note_kernel("xformers", "xformers 0.0.33")
    has_heads = query.dim() == 4
    if not has_heads:
        query, key, value = (one.unsqueeze(2) for one in (query, key, value))
    if _fits_flash(query, attn_bias):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        query, key, value = (
            one if one.stride(-1) == 1 else one.contiguous() for one in (query, key, value)
        )
        out = _Flash.apply(query, key, value, attn_bias, p, scale)
    elif isinstance(attn_bias, BlockDiagonalMask):
        raise NotImplementedError(
            "plimsoll's stand-in for xformers has masks of several lengths in half precision only"
        )
    else:
        query, key, value = (one.transpose(1, 2) for one in (query, key, value))
        mask = attn_bias if isinstance(attn_bias, torch.Tensor) else None
        if mask is not None and mask.dim() == 3:
            mask = mask.unflatten(0, (-1, query.shape[1]))
        causal = isinstance(attn_bias, AttentionBias) and attn_bias.is_causal
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            out = functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=p, is_causal=causal, scale=scale
            ).transpose(1, 2)
    return out if has_heads else out.squeeze(2)


AttentionOp = AttentionOpBase = type(None)
AttentionMask = AttentionBias
MemoryEfficientAttentionCutlassOp = None
MemoryEfficientAttentionFlashAttentionOp = None
