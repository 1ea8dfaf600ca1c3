"""causal-conv1d's function that returns the last rows of sequences of different lengths.

The code follows causal_conv1d/causal_conv1d_varlen.py of causal-conv1d 1.6. The memory of the real
kernels was not measured.
"""

from __future__ import annotations

from typing import Any

from plimsoll.torch.simulated.libraries.source_kernels import launch_kernel


def causal_conv1d_varlen_states(x: Any, cu_seqlens: Any, state_len: int) -> Any:
    """Returns the last `state_len` rows of each sequence: sequences x channels x rows.

    `x` has the rows of all sequences, one after the other: rows x channels.
    """
    cu_seqlens = cu_seqlens.contiguous()
    states = x.new_empty(cu_seqlens.shape[0] - 1, state_len, x.shape[1]).transpose(1, 2)
    launch_kernel("causal_conv1d", "causal-conv1d 1.6.0", (cu_seqlens, states), (states,))
    return states
