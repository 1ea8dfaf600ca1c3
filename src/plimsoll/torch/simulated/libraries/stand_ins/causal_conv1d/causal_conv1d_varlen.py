"""causal-conv1d's last rows of sequences of several lengths.

Read in causal_conv1d/causal_conv1d_varlen.py of causal-conv1d 1.6, not measured.
"""

from __future__ import annotations

from typing import Any

from plimsoll.torch.simulated.libraries.source_kernels import launch_kernel


def causal_conv1d_varlen_states(x: Any, cu_seqlens: Any, state_len: int) -> Any:
    """Returns sequences by channels by `state_len`; `x` is all rows by channels."""
    cu_seqlens = cu_seqlens.contiguous()
    states = x.new_empty(cu_seqlens.shape[0] - 1, state_len, x.shape[1]).transpose(1, 2)
    launch_kernel("causal_conv1d", "causal-conv1d 1.6.0", (cu_seqlens, states), (states,))
    return states
