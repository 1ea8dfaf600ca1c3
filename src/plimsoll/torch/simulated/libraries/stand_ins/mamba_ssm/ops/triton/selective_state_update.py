"""mamba-ssm's function for a single step of the selective scan.

The code follows mamba_ssm/ops/triton/selective_state_update.py of mamba-ssm 2.3. The memory of the
real kernels was not measured.
"""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.torch.simulated.libraries.source_kernels import launch_kernel


def selective_state_update(
    state: Any,
    x: Any,
    dt: Any,
    A: Any,  # noqa: N803
    B: Any,  # noqa: N803
    C: Any,  # noqa: N803
    D: Any = None,  # noqa: N803
    z: Any = None,
    dt_bias: Any = None,  # noqa: ARG001
    dt_softplus: bool = False,  # noqa: ARG001
    state_batch_indices: Any = None,  # noqa: ARG001
) -> Any:
    """Computes one step of the selective scan, and updates the state."""
    out = torch.empty_like(x)
    launch_kernel("mamba_ssm", "mamba-ssm 2.3.0", (state, x, dt, A, B, C, D, z), (out, state))
    return out
