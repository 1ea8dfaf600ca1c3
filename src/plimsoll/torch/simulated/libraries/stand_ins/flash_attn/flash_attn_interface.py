"""The functions of flash-attn 2, with the tensors that each of them keeps for the backward pass.

The code follows flash_attn/flash_attn_interface.py of flash-attn 2.8.
"""

# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

import flash_attn_2_cuda as kernels  # type: ignore[import-not-found]
import torch
from torch.nn.functional import pad


def _along(x: Any) -> Any:
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


def _padded(tensors: Any, width: int) -> list[Any]:
    """Pads the tensors' last dimension to a multiple of 8, which the kernels need."""
    return [pad(one, [0, -width % 8]) if width % 8 else one for one in tensors]


def _up(value: int) -> int:
    return -(-value // 128) * 128


_operation = torch.library.custom_op
_shapes = torch.library.register_fake


@_operation("flash_attn::_flash_attn_forward", mutates_args=(), device_types="cuda")
def _flash_attn_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    return_softmax: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    how = (dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap)
    q, k, v = map(_along, (q, k, v))
    made = kernels.fwd(q, k, v, None, alibi_slopes, *how, return_softmax)
    return tuple(made)


@_shapes("flash_attn::_flash_attn_forward")
def _(q: Any, k: Any, *_: Any, **named: Any) -> Any:
    batch, rows, heads, _width = q.shape
    weights = q.new_empty(0)
    if named.get("return_softmax"):
        weights = q.new_empty(batch, heads, _up(rows), _up(k.shape[1]))
    state = torch.empty(2, dtype=torch.int64, device=q.device)
    logarithms = q.new_empty((batch, heads, rows), dtype=torch.float32)
    return torch.empty_like(_along(q)), logarithms, weights, state


@_operation("flash_attn::_flash_attn_varlen_forward", mutates_args=(), device_types="cuda")
def _flash_attn_varlen_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    return_softmax: bool = False,
    block_table: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    seqused_k: torch.Tensor | None = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = map(_along, (q, k, v))
    of = (q, k, v, None, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table)
    sizes = (max_seqlen_q, max_seqlen_k)
    how = (dropout_p, softmax_scale, zero_tensors, causal, window_size_left, window_size_right)
    rest = (softcap, return_softmax, None, num_splits)
    return tuple(kernels.varlen_fwd(*of, alibi_slopes, *sizes, *how, *rest))


@_shapes("flash_attn::_flash_attn_varlen_forward")
def _(
    q: Any,
    k: Any,  # noqa: ARG001
    v: Any,  # noqa: ARG001
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,  # noqa: ARG001
    max_seqlen_q: int,
    max_seqlen_k: int,
    *_: Any,
    **named: Any,
) -> Any:
    rows, heads, _width = q.shape
    weights = q.new_empty(0)
    if named.get("return_softmax"):
        batch = cu_seqlens_q.numel() - 1
        weights = q.new_empty(batch, heads, _up(max_seqlen_q), _up(max_seqlen_k))
    state = torch.empty(2, dtype=torch.int64, device=q.device)
    logarithms = q.new_empty((heads, rows), dtype=torch.float32)
    return torch.empty_like(_along(q)), logarithms, weights, state


@_operation(
    "flash_attn::_flash_attn_backward", mutates_args=("dq", "dk", "dv"), device_types="cuda"
)
def _flash_attn_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: torch.Tensor | None,
    dk: torch.Tensor | None,
    dv: torch.Tensor | None,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
    rng_state: torch.Tensor | None = None,
) -> torch.Tensor:
    how = (dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap)
    dout, q, k, v, out = map(_along, (dout, q, k, v, out))
    of = (dout, q, k, v, out, softmax_lse, dq, dk, dv)
    return kernels.bwd(*of, alibi_slopes, *how, deterministic, None, rng_state)[3]


@_shapes("flash_attn::_flash_attn_backward")
def _(_gradient: Any, q: Any, *_: Any, **__: Any) -> Any:
    batch, rows, heads, _width = q.shape
    return q.new_empty((batch, heads, _up(rows)), dtype=torch.float32)


@_operation(
    "flash_attn::_flash_attn_varlen_backward", mutates_args=("dq", "dk", "dv"), device_types="cuda"
)
def _flash_attn_varlen_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    dq: torch.Tensor | None,
    dk: torch.Tensor | None,
    dv: torch.Tensor | None,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    deterministic: bool,
    rng_state: torch.Tensor | None = None,
    zero_tensors: bool = False,
) -> torch.Tensor:
    dout, q, k, v, out = map(_along, (dout, q, k, v, out))
    of = (dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k)
    sizes = (max_seqlen_q, max_seqlen_k)
    how = (dropout_p, softmax_scale, zero_tensors, causal, window_size_left, window_size_right)
    rest = (softcap, deterministic, None, rng_state)
    return kernels.varlen_bwd(*of, alibi_slopes, *sizes, *how, *rest)[3]


@_shapes("flash_attn::_flash_attn_varlen_backward")
def _(
    _gradient: Any,
    q: Any,
    k: Any,  # noqa: ARG001
    v: Any,  # noqa: ARG001
    out: Any,  # noqa: ARG001
    softmax_lse: Any,  # noqa: ARG001
    dq: Any,  # noqa: ARG001
    dk: Any,  # noqa: ARG001
    dv: Any,  # noqa: ARG001
    cu_seqlens_q: Any,
    *_: Any,
    **__: Any,
) -> Any:
    rows = q.shape[0] + 128 * (cu_seqlens_q.numel() - 1)
    return q.new_empty((q.shape[1], rows), dtype=torch.float32)


def _taken_apart(tensors: tuple[Any, ...]) -> list[Any]:
    """Returns query, key and value. `tensors` is (q, k, v), (q, kv) or (qkv,)."""
    if len(tensors) == 3:
        return list(tensors)
    *alone, packed = tensors
    return [*alone, *(packed.select(-3, part).detach() for part in range(packed.shape[-3]))]


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """Implements all functions of flash-attn. Without `lengths`, sequences are equally long."""

    @staticmethod
    def forward(
        ctx: Any,
        lengths: tuple[Any, Any, int, int] | None,
        how: tuple[float, float, bool, int, int, float],
        slopes: Any,
        deterministic: bool,
        return_softmax: bool,
        block_table: Any,
        is_differentiated: bool,
        *tensors: Any,
    ) -> Any:
        parts = _taken_apart(tensors)
        width = parts[0].shape[-1]
        q, k, v = _padded(parts, width)
        returns_weights = return_softmax and how[0] > 0
        rest = {"alibi_slopes": slopes, "return_softmax": returns_weights}
        if lengths is None:
            made = torch.ops.flash_attn._flash_attn_forward(q, k, v, *how, **rest)
        else:
            made = torch.ops.flash_attn._flash_attn_varlen_forward(
                q, k, v, *lengths, *how, **rest, block_table=block_table
            )
        out, logarithms, weights, state = made
        if is_differentiated:
            of_lengths = () if lengths is None else lengths[:2]
            ctx.save_for_backward(q, k, v, out, logarithms, state, *of_lengths)
            ctx.longest = None if lengths is None else lengths[2:]
            ctx.how, ctx.slopes, ctx.deterministic = how, slopes, deterministic
            ctx.packs = len(tensors)
        out = out[..., :width]
        return (out, logarithms, weights) if return_softmax else out

    @staticmethod
    def backward(ctx: Any, gradient: Any, *_: Any) -> Any:
        q, k, v, out, logarithms, state, *lengths = ctx.saved_tensors
        width = gradient.shape[-1]
        if ctx.packs == 3:
            whole = made = [torch.empty_like(one) for one in (q, k, v)]
        else:
            packed = 4 - ctx.packs
            like = q if packed == 3 else k
            shape = (*like.shape[:-2], packed, *like.shape[-2:])
            alone = [torch.empty_like(q)] if packed == 2 else []
            joint = like.new_empty(shape)
            whole = [*alone, joint]
            made = [*alone, *(joint.select(-3, part) for part in range(packed))]
        (gradient,) = _padded([gradient], width)
        of = (gradient, q, k, v, out, logarithms, *made)
        rest = (*ctx.how, ctx.slopes, ctx.deterministic)
        if ctx.longest is None:
            torch.ops.flash_attn._flash_attn_backward(*of, *rest, rng_state=state)
        else:
            torch.ops.flash_attn._flash_attn_varlen_backward(
                *of, *lengths, *ctx.longest, *rest, rng_state=state
            )
        return (*[None] * 7, *(one[..., :width] for one in whole))


def _attend(
    tensors: tuple[Any, ...],
    lengths: tuple[Any, Any, int, int] | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Any,
    deterministic: bool,
    return_attn_probs: bool,
    block_table: Any = None,
) -> Any:
    scale = tensors[0].shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    how = (dropout_p, scale, causal, *window_size, softcap)
    is_differentiated = torch.is_grad_enabled() and any(one.requires_grad for one in tensors)
    rest = (deterministic, return_attn_probs, block_table, is_differentiated)
    return _Attention.apply(lengths, how, alibi_slopes, *rest, *tensors)


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Computes attention over sequences of equal length."""
    how = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _attend((q, k, v), None, *how, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Computes attention over sequences of equal length, with q, k and v in one tensor."""
    how = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _attend((qkv,), None, *how, return_attn_probs)


def flash_attn_kvpacked_func(
    q: Any,
    kv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Computes attention over sequences of equal length, with k and v in one tensor."""
    how = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _attend((q, kv), None, *how, return_attn_probs)


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:
    """Computes attention over packed sequences of different lengths."""
    lengths = (cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k))
    how = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _attend((q, k, v), lengths, *how, return_attn_probs, block_table)


def flash_attn_varlen_qkvpacked_func(
    qkv: Any,
    cu_seqlens: Any,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Computes attention over packed sequences of different lengths; one tensor has q, k and v."""
    lengths = (cu_seqlens, cu_seqlens, int(max_seqlen), int(max_seqlen))
    how = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _attend((qkv,), lengths, *how, return_attn_probs)


def flash_attn_varlen_kvpacked_func(
    q: Any,
    kv: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Computes attention over packed sequences of different lengths; one tensor has k and v."""
    lengths = (cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k))
    how = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic)
    return _attend((q, kv), lengths, *how, return_attn_probs)


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Computes attention of new query rows over a cache of keys and values."""
    q, k, v = map(_along, (q, k, v))
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full(
            (q.shape[0],), cache_seqlens, dtype=torch.int32, device=k_cache.device
        )
    of = (q, k_cache, v_cache, k, v, _along(cache_seqlens), rotary_cos, rotary_sin)
    places = (_along(cache_batch_idx), cache_leftpad, _along(block_table))
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    how = (scale, causal, *window_size, softcap, rotary_interleaved, num_splits)
    out, logarithms = kernels.fwd_kvcache(*of, *places, alibi_slopes, None, *how)
    return (out, logarithms) if return_softmax_lse else out
