"""The two functions of causal-conv1d, with the tensors that they keep for the backward pass.

The code follows causal_conv1d/causal_conv1d_interface.py of causal-conv1d 1.6.
"""

from __future__ import annotations

from typing import Any

import torch

from .cpp_functions import (
    causal_conv1d_bwd_function,
    causal_conv1d_fwd_function,
    causal_conv1d_update_function,
    empty_states,
)

_ACTIVATIONS = (None, "silu", "swish")


def _laid_out(x: Any) -> Any:
    return x.contiguous() if x is not None and 1 not in (x.stride(1), x.stride(2)) else x


def _is_active(activation: str | None) -> bool:
    if activation not in _ACTIVATIONS:
        raise NotImplementedError(f"there is no activation {activation!r}: None, silu or swish")
    return activation is not None


class _Convolution(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        x: Any,
        weight: Any,
        bias: Any,
        seq_idx: Any,
        initial_states: Any,
        return_final_states: bool,
        final_states_out: Any,
        is_active: bool,
    ) -> Any:
        x, initial_states = _laid_out(x), _laid_out(initial_states)
        bias = None if bias is None else bias.contiguous()
        seq_idx = None if seq_idx is None else seq_idx.contiguous()
        if not return_final_states:
            final_states_out = None
        elif final_states_out is None:
            final_states_out = empty_states(x, weight.shape[1])
        out = causal_conv1d_fwd_function(
            x, weight, bias, seq_idx, initial_states, final_states_out, is_active
        )
        ctx.save_for_backward(x, weight, bias, seq_idx, initial_states)
        ctx.returns_states = return_final_states
        ctx.needs_states = initial_states is not None and initial_states.requires_grad
        ctx.is_active = is_active
        return (out, final_states_out) if return_final_states else out

    @staticmethod
    def backward(ctx: Any, gradient: Any, *rest: Any) -> Any:
        of_states = rest[0] if ctx.returns_states else None
        x, weight, bias, seq_idx, initial_states = ctx.saved_tensors
        of = (x, weight, bias, _laid_out(gradient), seq_idx, initial_states, of_states)
        *first, of_initial = causal_conv1d_bwd_function(*of, None, ctx.needs_states, ctx.is_active)
        return (*first, None, of_initial, None, None, None)


def causal_conv1d_fn(
    x: Any,
    weight: Any,
    bias: Any = None,
    seq_idx: Any = None,
    initial_states: Any = None,
    return_final_states: bool = False,
    final_states_out: Any = None,
    activation: str | None = None,
) -> Any:
    """Convolves each channel along the sequence.

    A row is one position of the sequence. Each row of the result depends only on the same row of
    `x` and on the rows before it.
    """
    is_active = _is_active(activation)
    states = (initial_states, return_final_states, final_states_out)
    return _Convolution.apply(x, weight, bias, seq_idx, *states, is_active)


def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    activation: str | None = None,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
) -> Any:
    """Convolves the next row or rows of a sequence, and updates its state."""
    rows = x.unsqueeze(-1) if x.dim() == 2 else x
    how = (_is_active(activation), cache_seqlens, conv_state_indices)
    out = causal_conv1d_update_function(rows, conv_state, weight, bias, *how)
    return out.squeeze(-1) if x.dim() == 2 else out
