"""Makes the allocations of flash-attn 2's kernels, in the same order, and computes nothing.

The code follows csrc/flash_attn/flash_api.cpp of flash-attn 2.8. The memory of the real kernels was
not measured. Tensors have the dimensions batch, rows, heads, width. Tensors of packed sequences
lack the batch.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from plimsoll.torch.simulated.libraries.source_kernels import note_kernel

_OLDEST = (2, 7)
"""The oldest version of flash-attn that plimsoll simulates.

The kernels of older versions also return padded copies, and take other arguments.
"""
_ROW_BLOCK = 128
_SPLIT_ROW_BLOCK = 64


def _refuse_old_kernels() -> None:
    found = str(getattr(sys.modules.get("flash_attn"), "__version__", ""))
    parts = found.split(".")[:2]
    if all(part.isdigit() for part in parts) and tuple(map(int, parts)) < _OLDEST:
        raise NotImplementedError(
            f"plimsoll simulates the kernels of flash-attn 2.7 and later; flash-attn {found} is "
            "installed, whose kernels take and return other tensors"
        )


_refuse_old_kernels()


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True)
class _Sizes:
    """The sizes of one call; `rows` and `key_rows` are those of the longest sequence."""

    batch: int
    rows: int
    heads: int
    key_rows: int
    key_heads: int
    width: int

    @classmethod
    def of(cls, query: Any, key_rows: int, key_heads: int) -> _Sizes:
        batch, rows, heads, width = query.shape
        return cls(batch, rows, heads, key_rows, key_heads, width)

    @property
    def groups(self) -> int:
        return self.heads // self.key_heads

    @property
    def rounded_width(self) -> int:
        return _up(self.width, 32 if self.width <= 128 else 64)

    def swapped(self) -> _Sizes:
        """Returns the sizes of the same call with one query head for each key head.

        All query heads that share a key head become rows of this one head.
        """
        return _Sizes(
            self.batch, self.groups, self.key_heads, self.key_rows, self.key_heads, self.width
        )

    def splits(self, device: torch.device) -> int:
        """Returns the number of parts into which the keys are split."""
        key_block = 256 if self.width <= 64 else 128 if self.width <= 128 else 64
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        blocks = self.batch * self.heads * -(-self.rows // _SPLIT_ROW_BLOCK)
        split: int = torch.ops.plimsoll.attention_splits(
            blocks, 2 * processors, -(-self.key_rows // key_block)
        )
        return split

    def launch(
        self, written: list[Any], causal: bool, dropout: float, *, is_backward: bool
    ) -> None:
        note_kernel("flash_attn", "flash-attn 2.8.3")
        shape = [self.batch * self.heads, self.rows, self.key_rows, self.width]
        torch.ops.plimsoll.launch_attention(written, shape, causal, dropout > 0, is_backward)


def _check(*tensors: Any) -> None:
    query = tensors[0]
    if torch.cuda.get_device_capability(query.device)[0] < 8:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    for tensor in tensors:
        if tensor.device.type != "cuda":
            raise RuntimeError("flash_attn: tensors must be on CUDA")
        if tensor.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        if tensor.dtype != query.dtype:
            raise RuntimeError("query, key and value must have the same dtype")
        if tensor.stride(-1) != 1:
            raise RuntimeError("Input tensor must have contiguous last dimension")
    width, heads = query.shape[-1], query.shape[-2]
    if width > 256 or width % 8:
        raise RuntimeError("FlashAttention forward only supports head dimensions of 8 to 256, by 8")
    if heads % tensors[1].shape[-2]:
        raise RuntimeError("Number of heads in key/value must divide number of heads in query")


def _swaps(sizes: _Sizes, window: tuple[int, int], dropout: float, slopes: Any) -> bool:
    is_plain = max(window) < 0 and dropout == 0 and slopes is None
    return sizes.rows == 1 and sizes.heads > sizes.key_heads and is_plain


def _floats(like: Any, *shape: int) -> Any:
    return like.new_empty(shape, dtype=torch.float32)


def _accumulators(like: Any, sizes: _Sizes, splits: int) -> tuple[Any, ...]:
    """Allocates the accumulators for split keys; none if the keys are not split."""
    if splits <= 1:
        return ()
    rows = (splits, sizes.batch, sizes.heads, sizes.rows)
    return _floats(like, *rows), _floats(like, *rows, sizes.rounded_width)


def _weights(like: Any, sizes: _Sizes, returns_them: bool) -> Any:
    if not returns_them:
        return like.new_empty(0)
    rows, key_rows = _up(sizes.rows, _ROW_BLOCK), _up(sizes.key_rows, _ROW_BLOCK)
    return like.new_empty(sizes.batch, sizes.heads, rows, key_rows)


def fwd(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    alibi_slopes: Any,
    p_dropout: float,
    softmax_scale: float,  # noqa: ARG001
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,  # noqa: ARG001
    return_softmax: bool,
    generator: Any = None,  # noqa: ARG001
) -> list[Any]:
    """Computes attention over sequences of equal length.

    Returns:
        The result, the log-sum-exp of each row, the attention weights and the random state.
    """
    _check(q, k, v)
    sizes = _Sizes.of(q, k.shape[1], k.shape[2])
    window = (window_size_left, 0 if is_causal and q.shape[1] > 1 else window_size_right)
    swaps = _swaps(sizes, window, p_dropout, alibi_slopes)
    if swaps:
        sizes = sizes.swapped()
        q = q.reshape(sizes.batch, sizes.heads, sizes.rows, sizes.width).transpose(1, 2)
    out = torch.empty_like(q) if out is None else out
    logarithms = _floats(q, sizes.batch, sizes.heads, sizes.rows)
    weights = _weights(q, sizes, return_softmax)
    splits = sizes.splits(q.device) if p_dropout == 0 else 1
    kept = _accumulators(q, sizes, splits)
    state = torch.empty(2, dtype=torch.int64, device=q.device)
    sizes.launch([out, logarithms, weights, *kept], is_causal, p_dropout, is_backward=False)
    if swaps:
        out = out.transpose(1, 2).reshape(sizes.batch, 1, -1, sizes.width)
        logarithms = logarithms.reshape(sizes.batch, -1, 1)
    return [out, logarithms, weights, state]


def varlen_fwd(
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,  # noqa: ARG001
    seqused_k: Any,  # noqa: ARG001
    leftpad_k: Any,  # noqa: ARG001
    block_table: Any,
    alibi_slopes: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,  # noqa: ARG001
    zero_tensors: bool,
    is_causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,  # noqa: ARG001
    return_softmax: bool,
    generator: Any = None,  # noqa: ARG001
    num_splits: int = 0,
) -> list[Any]:
    """Computes attention over packed sequences. Returns the same tensors as `fwd`."""
    _check(q, k, v)
    batch = cu_seqlens_q.numel() - 1
    sizes = _Sizes(batch, max_seqlen_q, q.shape[1], max_seqlen_k, k.shape[-2], q.shape[2])
    window = (window_size_left, 0 if is_causal and max_seqlen_q > 1 else window_size_right)
    swaps = _swaps(sizes, window, p_dropout, alibi_slopes)
    if swaps:
        sizes = sizes.swapped()
        parts = (sizes.batch, sizes.heads, sizes.rows, sizes.width)
        q = q.reshape(parts).transpose(1, 2).reshape(-1, sizes.heads, sizes.width)
    out = torch.empty_like(q) if out is None else out
    logarithms = _floats(q, sizes.heads, q.shape[0])
    weights = _weights(q, sizes, return_softmax)
    if zero_tensors:
        out.zero_()
        logarithms.fill_(float("-inf"))
    kept: tuple[Any, ...] = ()
    if swaps:
        splits = num_splits if num_splits > 0 else sizes.splits(q.device)
        kept = _accumulators(q, sizes, splits)
    elif block_table is not None and num_splits > 1:
        raise RuntimeError("num_splits > 1 is not supported for varlen paged KV")
    state = torch.empty(2, dtype=torch.int64, device=q.device)
    sizes.launch([out, logarithms, weights, *kept], is_causal, p_dropout, is_backward=False)
    if swaps:
        parts = (sizes.batch, sizes.rows, sizes.heads, sizes.width)
        out = out.reshape(parts).transpose(1, 2).reshape(sizes.batch, -1, sizes.width)
        logarithms = logarithms.reshape(-1, sizes.batch)
    return [out, logarithms, weights, state]


def _gradients(
    of: tuple[Any, Any, Any],
    made: tuple[Any, Any, Any],
    sizes: _Sizes,
    statistics: tuple[int, ...],
    sums: tuple[int, ...],
    causal: bool,
    dropout: float,
    deterministic: bool,
) -> list[Any]:
    """Implements `bwd` and `varlen_bwd`.

    The fourth result has one sum for each row: the row's output times its gradient, summed up.
    `statistics` is the shape of this result. `sums` is the shape of the tensor that accumulates the
    query gradient.
    """
    query, key, value = of
    dq, dk, dv = (
        torch.empty_like(one) if given is None else given
        for one, given in zip(of, made, strict=True)
    )
    row_sums = _floats(query, *statistics)
    if deterministic:
        processors = torch.cuda.get_device_properties(query.device).multi_processor_count
        parts = -(-processors // (sizes.batch * sizes.heads))
        accumulated = query.new_zeros((parts, *sums), dtype=torch.float32)
    else:
        accumulated = _floats(query, *sums)
    if sizes.groups == 1:
        sizes.launch([dq, dk, dv, row_sums, accumulated], causal, dropout, is_backward=True)
        return [dq, dk, dv, row_sums]
    whole = (*key.shape[:-2], sizes.heads, sizes.width)
    keys, values = key.new_empty(whole), value.new_empty(whole)
    sizes.launch([dq, keys, values, row_sums, accumulated], causal, dropout, is_backward=True)
    grouped = (*key.shape[:-1], sizes.groups, sizes.width)
    torch.sum(keys.reshape(grouped), -2, out=dk)
    torch.sum(values.reshape(grouped), -2, out=dv)
    return [dq, dk, dv, row_sums]


def bwd(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    softmax_lse: Any,  # noqa: ARG001
    dq: Any,
    dk: Any,
    dv: Any,
    alibi_slopes: Any,  # noqa: ARG001
    p_dropout: float,
    softmax_scale: float,  # noqa: ARG001
    is_causal: bool,
    window_size_left: int,  # noqa: ARG001
    window_size_right: int,  # noqa: ARG001
    softcap: float,  # noqa: ARG001
    deterministic: bool,
    generator: Any = None,  # noqa: ARG001
    rng_state: Any = None,  # noqa: ARG001
) -> list[Any]:
    """Returns the gradients of query, key and value, and the sums described in `_gradients`."""
    _check(q, k, v, out, dout)
    sizes = _Sizes.of(q, k.shape[1], k.shape[2])
    rows = _up(sizes.rows, _ROW_BLOCK)
    statistics = (sizes.batch, sizes.heads, rows)
    sums = (sizes.batch, rows, sizes.heads, sizes.rounded_width)
    how = (is_causal, p_dropout, deterministic)
    return _gradients((q, k, v), (dq, dk, dv), sizes, statistics, sums, *how)


def varlen_bwd(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    softmax_lse: Any,  # noqa: ARG001
    dq: Any,
    dk: Any,
    dv: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,  # noqa: ARG001
    alibi_slopes: Any,  # noqa: ARG001
    max_seqlen_q: int,
    max_seqlen_k: int,
    p_dropout: float,
    softmax_scale: float,  # noqa: ARG001
    zero_tensors: bool,  # noqa: ARG001
    is_causal: bool,
    window_size_left: int,  # noqa: ARG001
    window_size_right: int,  # noqa: ARG001
    softcap: float,  # noqa: ARG001
    deterministic: bool,
    generator: Any = None,  # noqa: ARG001
    rng_state: Any = None,  # noqa: ARG001
) -> list[Any]:
    """Works like `bwd`, but takes packed sequences of different lengths."""
    _check(q, k, v, out, dout)
    batch = cu_seqlens_q.numel() - 1
    sizes = _Sizes(batch, max_seqlen_q, q.shape[1], max_seqlen_k, k.shape[1], q.shape[2])
    rows = q.shape[0] + _ROW_BLOCK * batch
    sums = (rows, sizes.heads, sizes.rounded_width)
    how = (is_causal, p_dropout, deterministic)
    return _gradients((q, k, v), (dq, dk, dv), sizes, (sizes.heads, rows), sums, *how)


def fwd_kvcache(
    q: Any,
    kcache: Any,
    vcache: Any,
    k: Any = None,
    v: Any = None,
    seqlens_k: Any = None,
    rotary_cos: Any = None,  # noqa: ARG001
    rotary_sin: Any = None,  # noqa: ARG001
    cache_batch_idx: Any = None,  # noqa: ARG001
    leftpad_k: Any = None,  # noqa: ARG001
    block_table: Any = None,
    alibi_slopes: Any = None,
    out: Any = None,
    softmax_scale: float = 1.0,  # noqa: ARG001
    is_causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,  # noqa: ARG001
    is_rotary_interleaved: bool = True,  # noqa: ARG001
    num_splits: int = 0,
) -> list[Any]:
    """Computes attention of new query rows over a cache. Adds `k` and `v` to the cache if given."""
    _check(q, kcache, vcache)
    pages = None if block_table is None else block_table.shape[1] * kcache.shape[1]
    key_rows = kcache.shape[1] if pages is None else pages
    sizes = _Sizes.of(q, key_rows, kcache.shape[2])
    window = (window_size_left, 0 if is_causal and q.shape[1] > 1 else window_size_right)
    swaps = _swaps(sizes, window, 0, alibi_slopes)
    if swaps:
        sizes = sizes.swapped()
        q = q.reshape(sizes.batch, sizes.heads, sizes.rows, sizes.width).transpose(1, 2)
    given, out = out, torch.empty_like(q) if out is None else out
    logarithms = _floats(q, sizes.batch, sizes.heads, sizes.rows)
    if pages is not None and seqlens_k is not None:
        seqlens_k.max().item()  # flash-attn reads this value on the host to check the pages
    splits = num_splits if num_splits > 0 else sizes.splits(q.device)
    kept = _accumulators(q, sizes, splits)
    added = [kcache, vcache] if k is not None and v is not None else []
    sizes.launch([out, logarithms, *kept, *added], is_causal, 0, is_backward=False)
    if swaps:
        if given is None:
            out = out.transpose(1, 2).reshape(sizes.batch, 1, -1, sizes.width)
        logarithms = logarithms.reshape(sizes.batch, -1, 1)
    return [out, logarithms]
