"""xformers: its attention with its masks, SwiGLU and unbind.

Read from xformers/ops of xformers 0.0.33, not measured. Half precision without a mask, or with one
of its own, takes the kernels of flash attention; all else takes those of PyTorch, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from plimsoll.torch.simulated.libraries.stand_ins import flash_attn_2_cuda as flash

__version__ = "0.0.33"


class AttentionBias:
    """What is added to the scores."""

    is_causal = False


class LowerTriangularMask(AttentionBias):
    """Each row sees the rows before it."""

    is_causal = True

    def materialize(self, shape: Any, dtype: Any = torch.float32, device: Any = "cpu") -> Any:
        """The scores' mask."""
        return torch.full(shape, float("-inf"), dtype=dtype, device=device).triu(1)


class LowerTriangularFromBottomRightMask(LowerTriangularMask):
    """The same, counted from the last row."""


@dataclass
class _SeqLenInfo:
    seqstart: Any
    max_seqlen: int
    seqstart_py: list[int]

    @classmethod
    def from_seqlens(cls, seqlens: Any) -> _SeqLenInfo:
        starts = [0]
        for length in seqlens:
            starts.append(starts[-1] + length)
        return cls(torch.tensor(starts, dtype=torch.int32), max(seqlens, default=0), starts)

    def to(self, device: Any) -> None:
        self.seqstart = self.seqstart.to(device, non_blocking=True)


@dataclass
class BlockDiagonalMask(AttentionBias):
    """Sequences of several lengths, one after the other."""

    q_seqinfo: _SeqLenInfo
    k_seqinfo: _SeqLenInfo
    _batch_sizes: Any = None

    @classmethod
    def from_seqlens(
        cls,
        q_seqlen: Any,
        kv_seqlen: Any = None,
        *,
        device: Any = None,
    ) -> BlockDiagonalMask:
        """Of their lengths."""
        of_queries = _SeqLenInfo.from_seqlens(q_seqlen)
        of_keys = of_queries if kv_seqlen is None else _SeqLenInfo.from_seqlens(kv_seqlen)
        if device is not None:
            of_queries.to(device)
            of_keys.to(device)
        return cls(of_queries, of_keys)

    @classmethod
    def from_tensor_list(cls, tensors: Any) -> Any:
        """Of sequences, with these in one tensor."""
        sizes = [tensor.shape[0] for tensor in tensors]
        lengths = [tensor.shape[1] for tensor in tensors for _ in range(tensor.shape[0])]
        mask = cls.from_seqlens(lengths)
        mask._batch_sizes = sizes
        rows = [tensor.reshape(1, -1, *tensor.shape[2:]) for tensor in tensors]
        return mask, torch.cat(rows, dim=1)

    def split(self, tensor: Any) -> Any:
        """The reverse."""
        starts = self.q_seqinfo.seqstart_py
        sizes = self._batch_sizes or [1] * (len(starts) - 1)
        parts, first = [], 0
        for size in sizes:
            part = tensor[:, starts[first] : starts[first + size]]
            parts.append(part.reshape(size, -1, *tensor.shape[2:]))
            first += size
        return parts

    def make_causal(self) -> BlockDiagonalCausalMask:
        """The same, where each row sees the rows before it."""
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo, self._batch_sizes)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """The same, where each row sees the rows before it."""

    is_causal = True


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
    """What the kernels are told of sequences of several lengths; None if they have the same."""
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
    """Attention of tensors that are laid out as batch, rows, heads, width, or without heads."""
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


class _Unbind(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int) -> Any:
        ctx.dim = dim
        return x.unbind(dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.stack(gradients, dim=ctx.dim), None


def unbind(x: Any, dim: int) -> Any:
    """As `torch.unbind`."""
    return _Unbind.apply(x, dim)


def swiglu(
    x: Any,
    w1: Any,
    b1: Any,
    w2: Any,
    b2: Any,
    w3: Any,
    b3: Any,
    *,
    op: Any = None,  # noqa: ARG001
) -> Any:
    """Two linear layers, one of which is the other's gate, and a third."""
    gate = functional.silu(functional.linear(x, w1, b1))
    return functional.linear(gate * functional.linear(x, w2, b2), w3, b3)


class SwiGLU(nn.Module):  # type: ignore[misc]
    """The same as a module."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.w12 = nn.Linear(in_features, 2 * hidden_features, bias=bias)
        self.w3 = nn.Linear(hidden_features, out_features or in_features, bias=bias)

    def forward(self, x: Any) -> Any:
        """What the layers make of `x`."""
        of_gate, of_rest = self.w12.weight.chunk(2)
        biases = (None, None) if self.w12.bias is None else self.w12.bias.chunk(2)
        return swiglu(x, of_gate, biases[0], of_rest, biases[1], self.w3.weight, self.w3.bias)
