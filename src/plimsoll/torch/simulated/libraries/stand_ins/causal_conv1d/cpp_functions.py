"""causal-conv1d's functions that allocate tensors and run the kernels; mamba-ssm imports them.

The code follows causal_conv1d/cpp_functions.py of causal-conv1d 1.6.
"""

from __future__ import annotations

from typing import Any

import causal_conv1d_cuda as kernels  # type: ignore[import-not-found]
import torch


def empty_states(x: Any, width: int) -> Any:
    """Allocates a tensor for the inputs before each sequence: batch x channels x (`width` - 1)."""
    batch, channels, _ = x.shape
    return x.new_empty(batch, width - 1, channels).transpose(1, 2)


def causal_conv1d_fwd_function(
    x: Any,
    weight: Any,
    bias: Any,
    seq_idx: Any,
    initial_states: Any,
    final_states_out: Any,
    silu_activation: bool,
) -> Any:
    """Allocates the result and runs the forward kernel."""
    out = torch.empty_like(x)
    kernels.causal_conv1d_fwd(
        x, weight, bias, seq_idx, initial_states, out, final_states_out, silu_activation
    )
    return out


def causal_conv1d_bwd_function(
    x: Any,
    weight: Any,
    bias: Any,
    dout: Any,
    seq_idx: Any,
    initial_states: Any,
    dfinal_states: Any,
    dx: Any,
    return_dinitial_states: bool,
    silu_activation: bool,
) -> Any:
    """Runs the backward kernel, which sums the gradients of the weight and the bias as float32."""
    dx = torch.empty_like(x) if dx is None else dx
    dweight = torch.zeros_like(weight, dtype=torch.float32)
    dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    dinitial = empty_states(x, weight.shape[-1]) if return_dinitial_states else None
    read = (x, weight, bias, dout, seq_idx, initial_states, dfinal_states)
    kernels.causal_conv1d_bwd(*read, dx, dweight, dbias, dinitial, silu_activation)
    dbias = None if dbias is None else dbias.type_as(bias)
    return dx, dweight.type_as(weight), dbias, dinitial


def causal_conv1d_update_function(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any = None,
    silu_activation: bool = False,
    cache_seqlens: Any = None,
    conv_state_indices: Any = None,
) -> Any:
    """Allocates the result and runs the kernel that convolves a sequence's next row or rows."""
    out = torch.empty_like(x)
    how = (silu_activation, cache_seqlens, conv_state_indices)
    kernels.causal_conv1d_update(x, conv_state, weight, bias, out, *how)
    return out
