"""The functions of flash-attn 3: they allocate the kernels' memory, and compute nothing.

The code follows hopper/flash_attn_interface.py and flash_api.cpp of flash-attn 3. The memory of the
real kernels was not measured.
"""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.torch.simulated.libraries.flash_attention_3 import Shape, take_besides
from plimsoll.torch.simulated.libraries.source_kernels import note_kernel

__version__ = "3.0.0"
_WIDTHS = (64, 96, 128, 192, 256)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _along(x: Any) -> Any:
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


def _floats(like: Any, *shape: int) -> Any:
    return like.new_empty(shape, dtype=torch.float32)


def _check(query: Any) -> None:
    if torch.cuda.get_device_capability(query.device)[0] < 8:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    kinds = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
    if query.dtype not in kinds:
        raise RuntimeError("FlashAttention only supports fp16, bf16, and fp8_e4m3 data type")


def _launch(written: list[Any], q: Any, longest: tuple[int, int], causal: bool, back: bool) -> None:
    note_kernel("flash_attn_interface", "flash-attn-3 3.0.0")
    rows, key_rows = longest
    heads = q.numel() // (q.shape[-1] * rows)
    torch.ops.plimsoll.launch_attention(
        written, [heads, rows, key_rows, q.shape[-1]], causal, False, back
    )


def _forward(
    q: Any,
    k: Any,
    v: Any,
    longest: tuple[int, int],
    lengths: Any,
    causal: bool,
    window: tuple[int, int],
    asked: int,
    pages: Any = None,
    scheduled: bool = False,
    cached: bool = False,
) -> tuple[Any, Any]:
    """Allocates the memory of the forward kernel, and launches the kernel.

    Args:
        q: Queries.
        k: Keys, or pages of them.
        v: Values, or pages of them.
        longest: The most query rows and key rows of a sequence.
        lengths: The number of sequences if they are packed and differ in length; otherwise None.
        causal: Whether each row sees no keys after its own position.
        window: How many keys before and after its own position a row sees; -1 means all of them.
        asked: The number of parts into which the keys are split; 0 lets flash-attn choose.
        pages: The table of pages, or None.
        scheduled: Whether the caller has made the schedule.
        cached: Whether each sequence has its own number of keys in a cache.

    Returns:
        The output, and the log-sum-exp of each row.
    """
    _check(q)
    q, k, v = map(_along, (q, k, v))
    kind = torch.bfloat16 if q.dtype == torch.float8_e4m3fn else q.dtype
    out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=kind, device=q.device)
    heads = q.shape[-2]
    rows = (q.shape[0], heads, q.shape[1]) if lengths is None else (heads, q.shape[0])
    card = torch.cuda.get_device_properties(q.device)
    shape = Shape(
        batch=q.shape[0] if lengths is None else lengths,
        rows=longest[0],
        key_rows=longest[1],
        heads=heads,
        key_heads=k.shape[-2],
        width=q.shape[-1],
        value_width=v.shape[-1],
        item_bytes=q.itemsize,
        is_causal=causal,
        left=window[0],
        right=window[1],
        page_rows=0 if pages is None else k.shape[1],
        is_varlen=lengths is not None or cached,
        processors=card.multi_processor_count,
        major=card.major,
    )
    made, schedule = take_besides(q, shape, rows, asked, is_scheduled=scheduled)
    _launch([out, *made], q, longest, causal, back=False)
    del schedule
    return out, made[0]


def _blocks(
    width: int, major: int, causal: bool, is_local: bool, softcap: float
) -> tuple[int, int]:
    """Returns how many query rows and key rows a thread block of the backward kernel processes."""
    if major < 9:
        row_block = 128 if width <= 64 else 64
        return row_block, 128 if width <= 128 else 80 if width <= 192 else 64
    if width <= 64:
        row_block = 96 if causal and softcap > 0 else 128
    elif width <= 96 or width > 128:
        row_block = 64
    else:
        row_block = 64 if causal or is_local or softcap > 0 else 80
    return row_block, 128 if width <= 128 else 96 if width <= 192 else 80


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        q: Any,
        k: Any,
        v: Any,
        starts: tuple[Any, ...],
        longest: tuple[int, int],
        causal: bool,
        window: tuple[int, int],
        softcap: float,
        splits: int,
        deterministic: bool,
        return_softmax: bool,
    ) -> Any:
        lengths = starts[0].numel() - 1 if starts else None
        out, logarithms = _forward(q, k, v, longest, lengths, causal, window, splits)
        ctx.save_for_backward(q, k, v, out, logarithms, *starts)
        ctx.lengths, ctx.longest, ctx.causal = lengths, longest, causal
        ctx.window, ctx.softcap, ctx.deterministic = window, softcap, deterministic
        return (out, logarithms) if return_softmax else out

    @staticmethod
    def backward(ctx: Any, gradient: Any, *_: Any) -> Any:
        q, k, v, out, _logarithms, *_starts = ctx.saved_tensors
        made = [torch.empty_like(one) for one in (q, k, v)]
        gradient, q, k, v, out = map(_along, (gradient, q, k, v, out))
        width = next(each for each in _WIDTHS if max(q.shape[-1], v.shape[-1]) <= each)
        major = torch.cuda.get_device_capability(q.device)[0]
        is_local = max(ctx.window) >= 0 and not ctx.causal
        block, key_block = _blocks(width, major, ctx.causal, is_local, ctx.softcap)
        heads, key_heads = q.shape[-2], k.shape[-2]
        rows, key_rows = ctx.longest
        if ctx.lengths is None:
            batch = q.shape[0]
            padded, key_padded = (batch, _up(rows, block)), (batch, _up(key_rows, key_block))
        else:
            batch = ctx.lengths
            padded = (1, _up(q.shape[0] + batch * block, block))
            key_padded = (1, _up(k.shape[0] + batch * key_block, key_block))
        held = [_floats(q, padded[0], heads, padded[1]) for _ in range(2)]
        held.append(_floats(q, padded[0], heads, padded[1] * width))
        if heads != key_heads:
            shape = (key_padded[0], key_heads, key_padded[1] * width)
            held += [q.new_zeros(shape, dtype=torch.float32) for _ in range(2)]
        counters = [q.new_empty((-(-rows // block), batch, heads), dtype=torch.int32)]
        if heads != key_heads and ctx.deterministic:
            shape = (-(-key_rows // key_block), batch, key_heads)
            counters += [q.new_zeros(shape, dtype=torch.int32) for _ in range(2)]
        _launch([*made, *held], q, ctx.longest, ctx.causal, back=True)
        return (*made, *[None] * 8)


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: float | None = None,  # noqa: ARG001
    causal: bool = False,
    qv: Any = None,  # noqa: ARG001
    q_descale: Any = None,  # noqa: ARG001
    k_descale: Any = None,  # noqa: ARG001
    v_descale: Any = None,  # noqa: ARG001
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,  # noqa: ARG001
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,  # noqa: ARG001
    deterministic: bool = False,
    sm_margin: int = 0,  # noqa: ARG001
    return_attn_probs: bool = False,
) -> Any:
    """Computes attention over sequences of equal length."""
    longest = (q.shape[1], k.shape[1])
    how = (causal, window_size, softcap, num_splits, deterministic, return_attn_probs)
    return _Attention.apply(q, k, v, (), longest, *how)


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Any = None,  # noqa: ARG001
    seqused_k: Any = None,  # noqa: ARG001
    softmax_scale: float | None = None,  # noqa: ARG001
    causal: bool = False,
    qv: Any = None,  # noqa: ARG001
    q_descale: Any = None,  # noqa: ARG001
    k_descale: Any = None,  # noqa: ARG001
    v_descale: Any = None,  # noqa: ARG001
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,  # noqa: ARG001
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,  # noqa: ARG001
    deterministic: bool = False,
    sm_margin: int = 0,  # noqa: ARG001
    return_attn_probs: bool = False,
) -> Any:
    """Computes attention over packed sequences of different lengths."""
    longest = (int(max_seqlen_q), int(max_seqlen_k))
    starts = (cu_seqlens_q, cu_seqlens_k)
    how = (causal, window_size, softcap, num_splits, deterministic, return_attn_probs)
    return _Attention.apply(q, k, v, starts, longest, *how)


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    qv: Any = None,  # noqa: ARG001
    rotary_cos: Any = None,  # noqa: ARG001
    rotary_sin: Any = None,  # noqa: ARG001
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,  # noqa: ARG001
    cache_leftpad: Any = None,
    page_table: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k_new: Any = None,  # noqa: ARG001
    max_seqlen_q: int | None = None,
    rotary_seqlens: Any = None,  # noqa: ARG001
    q_descale: Any = None,  # noqa: ARG001
    k_descale: Any = None,  # noqa: ARG001
    v_descale: Any = None,  # noqa: ARG001
    softmax_scale: float | None = None,  # noqa: ARG001
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,  # noqa: ARG001
    softcap: float = 0.0,  # noqa: ARG001
    rotary_interleaved: bool = True,  # noqa: ARG001
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,  # noqa: ARG001
    sm_margin: int = 0,  # noqa: ARG001
    return_softmax_lse: bool = False,
) -> Any:
    """Computes attention of new query rows over a cache of keys and values."""
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full((q.shape[0],), cache_seqlens, dtype=torch.int32, device=q.device)
    key_rows = k_cache.shape[1] if page_table is None else page_table.shape[1] * k_cache.shape[1]
    lengths = None if cu_seqlens_q is None else cu_seqlens_q.numel() - 1
    rows = q.shape[1] if lengths is None else int(max_seqlen_q or q.shape[0])
    out, logarithms = _forward(
        q,
        k_cache,
        v_cache,
        (rows, key_rows),
        lengths,
        causal,
        window_size,
        num_splits,
        pages=page_table,
        scheduled=scheduler_metadata is not None,
        cached=cache_seqlens is not None or cache_leftpad is not None,
    )
    if k is not None and v is not None:
        torch.ops.plimsoll.launch(
            [k_cache, v_cache], 2 * (k.nbytes + v.nbytes), [], [], torch.float32
        )
    return (out, logarithms) if return_softmax_lse else out
