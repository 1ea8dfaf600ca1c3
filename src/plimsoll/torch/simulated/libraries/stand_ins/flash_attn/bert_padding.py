"""flash-attn's functions that pack padded sequences one after the other, and unpack them.

The code follows flash_attn/bert_padding.py of flash-attn 2.8.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad


class _Rows(torch.autograd.Function):  # type: ignore[misc]
    """Selects rows of a tensor by their indices; the backward pass scatters the gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, indices: Any) -> Any:
        ctx.save_for_backward(indices)
        ctx.rows, *rest = tensor.shape
        flat = tensor.reshape(ctx.rows, -1)
        return flat.gather(0, indices[:, None].expand(-1, flat.shape[1])).reshape(-1, *rest)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (indices,) = ctx.saved_tensors
        rest = gradient.shape[1:]
        flat = gradient.reshape(gradient.shape[0], -1)
        whole = flat.new_zeros(ctx.rows, flat.shape[1])
        whole.scatter_(0, indices[:, None].expand(-1, flat.shape[1]), flat)
        return whole.reshape(ctx.rows, *rest), None


class _IntoRows(torch.autograd.Function):  # type: ignore[misc]
    """Makes a tensor with the given rows at some indices, and zeros elsewhere."""

    @staticmethod
    def forward(ctx: Any, values: Any, indices: Any, rows: int) -> Any:
        ctx.save_for_backward(indices)
        whole = values.new_zeros(rows, *values.shape[1:])
        whole[indices] = values
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (indices,) = ctx.saved_tensors
        return gradient[indices], None, None


def index_first_axis(tensor: Any, indices: Any) -> Any:
    """Returns the rows of a tensor at the given indices."""
    return _Rows.apply(tensor, indices)


def index_put_first_axis(values: Any, indices: Any, first_axis_dim: int) -> Any:
    """Returns a new tensor with the given rows at some indices, and zeros elsewhere."""
    return _IntoRows.apply(values, indices, first_axis_dim)


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Any = None) -> Any:
    """Packs the tokens that `attention_mask` or `unused_mask` selects.

    Returns:
        The packed tokens, their indices, the start of each sequence, the greatest length, and, for
        each sequence, how many of its tokens `attention_mask` selects.
    """
    mask = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    starts = pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, longest, used


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """Returns padded sequences from packed tokens."""
    whole = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return whole.reshape(batch, seqlen, *whole.shape[1:])
