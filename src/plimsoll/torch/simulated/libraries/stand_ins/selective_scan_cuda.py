"""Stands in for the kernels of Mamba's selective scan: allocates their tensors, computes nothing.

The code follows csrc/selective_scan/selective_scan.cpp of mamba-ssm 2.3. The memory of the real
kernels was not measured.
"""

from __future__ import annotations

from typing import Any

import torch

from plimsoll.torch.simulated.libraries.source_kernels import launch_kernel

_CHUNK = 2048


def _launch(read: Any, written: list[Any]) -> None:
    launch_kernel("mamba_ssm", "mamba-ssm 2.3.0", read, written)


def fwd(
    u: Any,
    delta: Any,
    A: Any,  # noqa: N803
    B: Any,  # noqa: N803
    C: Any,  # noqa: N803
    D: Any,  # noqa: N803
    z: Any,
    delta_bias: Any,
    delta_softplus: bool,  # noqa: ARG001
) -> list[Any]:
    """Returns the result, the states between chunks, and if `z` is given, the gated result."""
    gated = [] if z is None else [torch.empty_like(z)]
    out = torch.empty_like(delta)
    batch, channels, rows = u.shape
    chunks = -(-rows // _CHUNK)
    states = A.new_empty(batch, channels, chunks, 2 * A.shape[1])
    made = [out, states, *gated]
    _launch((u, delta, A, B, C, D, z, delta_bias), made)
    return made


def bwd(
    u: Any,
    delta: Any,
    A: Any,  # noqa: N803
    B: Any,  # noqa: N803
    C: Any,  # noqa: N803
    D: Any,  # noqa: N803
    z: Any,
    delta_bias: Any,
    dout: Any,
    x: Any,
    out: Any,
    dz: Any,
    delta_softplus: bool,  # noqa: ARG001
    recompute_out_z: bool,
) -> list[Any]:
    """Returns all gradients; if B or C varies by row, its gradient is summed in float32."""
    gate = []
    if z is not None:
        gate.append(torch.empty_like(z) if dz is None else dz)
        if recompute_out_z:
            gate.append(torch.empty_like(out))
    du, ddelta = torch.empty_like(u), torch.empty_like(delta)
    of_a = torch.zeros_like(A)
    of_b, of_c = (
        torch.zeros_like(one, dtype=torch.float32 if one.dim() >= 3 else one.dtype)
        for one in (B, C)
    )
    of_d, of_bias = (None if one is None else torch.zeros_like(one) for one in (D, delta_bias))
    made = [du, ddelta, of_a, of_b, of_c, of_d, of_bias, *gate]
    _launch((u, delta, A, B, C, z, dout, x, out), [one for one in made if one is not None])
    return [du, ddelta, of_a, of_b.to(B.dtype), of_c.to(C.dtype), of_d, of_bias, *gate]
