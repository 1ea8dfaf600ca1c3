"""Simulates FlashAttention 3's operations, as serving engines register them with PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plimsoll.torch.simulated.libraries.flash_attention_3 import (
    Shape,
    schedule_numbers,
    take_besides,
)


def _card() -> tuple[int, int]:
    """Returns the current card's number of multiprocessors and its major compute capability."""
    import torch

    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    return card.multi_processor_count, card.major


def _shape(
    q: Any,
    k: Any,
    v: Any,
    starts: Any,
    most_rows: int | None,
    most_key_rows: int | None,
    page_table: Any,
    margin: int,
) -> Shape:
    """Returns the `Shape` of a call from the call's tensors, as if the call had no mask."""
    several = starts is not None
    pages = 0 if page_table is None else page_table.shape[1] * k.shape[1]
    processors, major = _card()
    return Shape(
        batch=starts.numel() - 1 if several else q.shape[0],
        rows=int(most_rows) if several and most_rows is not None else q.shape[1],
        key_rows=int(most_key_rows) if most_key_rows is not None else pages or k.shape[1],
        heads=q.shape[-2],
        key_heads=k.shape[-2],
        width=q.shape[-1],
        value_width=v.shape[-1],
        item_bytes=q.itemsize,
        is_causal=False,
        left=-1,
        right=-1,
        page_rows=k.shape[1] if pages else 0,
        is_varlen=several,
        processors=processors - margin,
        major=major,
    )


def attend(
    q: Any,
    k: Any,
    v: Any,
    k_new: Any = None,
    v_new: Any = None,
    q_v: Any = None,
    out: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    cu_seqlens_k_new: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    page_table: Any = None,
    kv_batch_idx: Any = None,  # noqa: ARG001
    leftpad_k: Any = None,
    rotary_cos: Any = None,  # noqa: ARG001
    rotary_sin: Any = None,  # noqa: ARG001
    seqlens_rotary: Any = None,  # noqa: ARG001
    q_descale: Any = None,  # noqa: ARG001
    k_descale: Any = None,  # noqa: ARG001
    v_descale: Any = None,  # noqa: ARG001
    softmax_scale: float | None = None,  # noqa: ARG001
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,  # noqa: ARG001
    is_rotary_interleaved: bool = False,  # noqa: ARG001
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,  # noqa: ARG001
    sm_margin: int = 0,
    *_: Any,
) -> list[Any]:
    """Simulates a call of FlashAttention 3.

    The sequences may differ in length, and the keys may be pages of a cache.

    Returns:
        Four tensors: the output, the log-sum-exp of each row, the output of each part of the keys,
        and the log-sum-exp of each part.
    """
    import torch

    several = cu_seqlens_q is not None
    heads, width = q.shape[-2:]
    lengths = (cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k)
    shape = replace(
        _shape(q, k, v, cu_seqlens_q, max_seqlen_q, max_seqlen_k, page_table, sm_margin),
        is_causal=is_causal,
        left=window_size_left,
        right=window_size_right,
        is_varlen=any(each is not None for each in lengths),
    )
    del k_new, v_new, q_v, cu_seqlens_k_new
    kind = torch.bfloat16 if q.itemsize == 1 else q.dtype
    if out is None:
        out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=kind, device=q.device)
    lines = (heads, q.shape[0]) if several else (q.shape[0], heads, q.shape[1])
    made, schedule = take_besides(
        q, shape, lines, num_splits, is_scheduled=scheduler_metadata is not None
    )
    all_heads = q.numel() // max(width * shape.rows, 1)
    torch.ops.plimsoll.launch_attention(
        [out, *made],
        [max(all_heads, 1), shape.rows, shape.key_rows, width],
        is_causal,
        False,
        False,
    )
    del schedule
    return [out, *made]


def make_schedule(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads: int,
    num_heads_k: int,
    headdim: int,
    headdim_v: int,
    qkv_dtype: Any,
    seqused_k: Any,
    cu_seqlens_q: Any = None,  # noqa: ARG001
    cu_seqlens_k: Any = None,  # noqa: ARG001
    cu_seqlens_k_new: Any = None,  # noqa: ARG001
    seqused_q: Any = None,  # noqa: ARG001
    leftpad_k: Any = None,  # noqa: ARG001
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,  # noqa: ARG001
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    has_softcap: bool = False,  # noqa: ARG001
    num_splits: int = 0,
    pack_gqa: bool | None = None,  # noqa: ARG001
    sm_margin: int = 0,
    *_: Any,
) -> Any:
    """Allocates FlashAttention 3's schedule, which callers can make before the attention."""
    import torch

    processors, major = _card()
    shape = Shape(
        batch=batch_size,
        rows=max_seqlen_q,
        key_rows=max_seqlen_k,
        heads=num_heads,
        key_heads=num_heads_k,
        width=headdim,
        value_width=headdim_v,
        item_bytes=qkv_dtype.itemsize,
        is_causal=is_causal,
        left=window_size_left,
        right=window_size_right,
        page_rows=page_size or 0,
        is_varlen=True,
        processors=processors - sm_margin,
        major=major,
    )
    made = seqused_k.new_empty(schedule_numbers(shape, num_splits), dtype=torch.int32)
    torch.ops.plimsoll.launch([made], made.nbytes, [], [], torch.float32)
    return made
