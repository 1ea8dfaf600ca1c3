"""Stands in for the kernels of causal-conv1d: allocates their tensors, and computes nothing.

The code follows csrc/causal_conv1d.cpp of causal-conv1d 1.6. The memory of the real kernels was not
measured.
"""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.torch.simulated.libraries.source_kernels import launch_kernel


def _launch(read: Any, *written: Any) -> None:
    launch_kernel("causal_conv1d", "causal-conv1d 1.6.0", read, written)


def causal_conv1d_fwd(
    x: Any,
    weight: Any,
    bias: Any,
    seq_idx: Any,
    initial_states: Any,
    out: Any,
    final_states_out: Any,
    silu_activation: bool,  # noqa: ARG001
) -> None:
    """Writes the result, and the states after the last row if they are requested."""
    _launch((x, weight, bias, seq_idx, initial_states), out, final_states_out)


def causal_conv1d_bwd(
    x: Any,
    weight: Any,
    bias: Any,
    dout: Any,
    seq_idx: Any,
    initial_states: Any,
    dfinal_states: Any,
    dx: Any,
    dweight: Any,
    dbias: Any,
    dinitial_states: Any,
    silu_activation: bool,  # noqa: ARG001
) -> None:
    """Writes all gradients; allocates partial sums if algorithms must be deterministic."""
    read = (x, weight, bias, dout, seq_idx, initial_states, dfinal_states)
    _launch(read, dx, dweight, dbias, dinitial_states)
    if not torch.are_deterministic_algorithms_enabled():
        return
    parts: tuple[int, ...] = (x.shape[0],)
    if x.stride(2) != 1:
        rows = x.shape[2]
        parts = (x.shape[0], -(-rows // (64 if rows <= 128 else 128)))
    sums = [(dweight, dweight.new_zeros((*parts, *dweight.shape)))]
    if dbias is not None:
        sums.append((dbias, dbias.new_zeros((*parts, *dbias.shape))))
    for whole, partial in sums:
        whole.add_(partial.sum(tuple(range(len(parts)))))


def causal_conv1d_update(
    x: Any,
    conv_state: Any,
    weight: Any,
    bias: Any,
    out: Any,
    silu_activation: bool,  # noqa: ARG001
    cache_seqlens: Any = None,  # noqa: ARG001
    conv_state_indices: Any = None,  # noqa: ARG001
) -> None:
    """Writes the result for a sequence's next row or rows, and the sequence's new state."""
    _launch((x, weight, bias), out, conv_state)
