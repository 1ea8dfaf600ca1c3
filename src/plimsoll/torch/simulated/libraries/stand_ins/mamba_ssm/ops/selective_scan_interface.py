"""mamba-ssm's selective scan, and the function that fuses it with the rest of a Mamba layer.

The code follows mamba_ssm/ops/selective_scan_interface.py of mamba-ssm 2.3.
"""

from __future__ import annotations

from typing import Any

import selective_scan_cuda as kernels  # type: ignore[import-not-found]
import torch
from causal_conv1d.cpp_functions import (  # type: ignore[import-not-found]
    causal_conv1d_bwd_function,
    causal_conv1d_fwd_function,
)
from torch.nn import functional


def _along(x: Any) -> Any:
    return x.contiguous() if x is not None and x.stride(-1) != 1 else x


class _Scan(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        u: Any,
        delta: Any,
        a: Any,
        b: Any,
        c: Any,
        d: Any,
        z: Any,
        delta_bias: Any,
        delta_softplus: bool,
        return_last_state: bool,
    ) -> Any:
        u, delta, b, c, z = map(_along, (u, delta, b, c, z))
        d = None if d is None else d.contiguous()
        ctx.squeezes = (b.dim() == 3, c.dim() == 3)
        b, c = (one.unsqueeze(1) if one.dim() == 3 else one for one in (b, c))
        out, states, *gated = kernels.fwd(u, delta, a, b, c, d, z, delta_bias, delta_softplus)
        ctx.delta_softplus = delta_softplus
        kept = out if gated else None
        ctx.save_for_backward(u, delta, a, b, c, d, z, delta_bias, states, kept)
        result = gated[0] if gated else out
        return (result, states[:, :, -1, 1::2]) if return_last_state else result

    @staticmethod
    def backward(ctx: Any, gradient: Any, *_: Any) -> Any:
        u, delta, a, b, c, d, z, delta_bias, states, out = ctx.saved_tensors
        of = (u, delta, a, b, c, d, z, delta_bias, _along(gradient), states, out)
        du, ddelta, of_a, of_b, of_c, of_d, of_bias, *gate = kernels.bwd(
            *of, None, ctx.delta_softplus, False
        )
        of_b, of_c = (
            one.squeeze(1) if squeezes else one
            for one, squeezes in zip((of_b, of_c), ctx.squeezes, strict=True)
        )
        return du, ddelta, of_a, of_b, of_c, of_d, gate[0] if gate else None, of_bias, None, None


def selective_scan_fn(
    u: Any,
    delta: Any,
    A: Any,  # noqa: N803
    B: Any,  # noqa: N803
    C: Any,  # noqa: N803
    D: Any = None,  # noqa: N803
    z: Any = None,
    delta_bias: Any = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """Computes the selective scan over the rows of each sequence."""
    how = (delta_bias, delta_softplus, return_last_state)
    return _Scan.apply(u, delta, A, B, C, D, z, *how)


def rows_last(flat: Any, rows: int) -> Any:
    """Reshapes channels x (sequences * rows) to sequences x channels x rows."""
    return flat.unflatten(1, (-1, rows)).transpose(0, 1)


def joined(sequences: Any) -> Any:
    """Reshapes sequences x channels x rows to channels x (sequences * rows)."""
    return sequences.transpose(0, 1).flatten(1)


class _Block(torch.autograd.Function):  # type: ignore[misc]
    """Computes all of a Mamba layer except its first projection.

    The backward pass computes the convolution and `delta` again.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")  # type: ignore[untyped-decorator,unused-ignore]
    def forward(
        ctx: Any,
        xz: Any,
        conv_weight: Any,
        conv_bias: Any,
        x_weight: Any,
        delta_weight: Any,
        out_weight: Any,
        out_bias: Any,
        a: Any,
        b: Any,
        c: Any,
        d: Any,
        delta_bias: Any,
        delta_softplus: bool,
    ) -> Any:
        rows, rank, states = xz.shape[-1], delta_weight.shape[1], a.shape[-1]
        if torch.is_autocast_enabled():
            kind = torch.get_autocast_dtype("cuda")
            x_weight, delta_weight, out_weight = (
                one.to(kind) for one in (x_weight, delta_weight, out_weight)
            )
            out_bias = None if out_bias is None else out_bias.to(kind)
        xz = _along(xz)
        conv_weight = conv_weight.squeeze(1)
        x, z = xz.chunk(2, dim=1)
        conv_bias = None if conv_bias is None else conv_bias.contiguous()
        convolved = causal_conv1d_fwd_function(x, conv_weight, conv_bias, None, None, None, True)
        projected = functional.linear(joined(convolved).t(), x_weight)
        delta = rows_last(delta_weight @ projected[:, :rank].t(), rows)
        ctx.varies = (b is None, c is None)
        if b is None:
            b = rows_last(projected[:, rank : rank + states].t(), rows).unsqueeze(1).contiguous()
        if c is None:
            c = rows_last(projected[:, -states:].t(), rows).unsqueeze(1).contiguous()
        b, c = _along(b), _along(c)
        d = None if d is None else d.contiguous()
        out, between, gated = kernels.fwd(
            convolved, delta, a, b, c, d, z, delta_bias, delta_softplus
        )
        ctx.delta_softplus, ctx.has_bias = delta_softplus, out_bias is not None
        convolved = delta = None
        weights = (conv_weight, conv_bias, projected, x_weight, delta_weight, out_weight)
        ctx.save_for_backward(xz, *weights, a, b, c, d, delta_bias, between, out)
        return functional.linear(gated.transpose(1, 2), out_weight, out_bias)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator,unused-ignore]
    def backward(ctx: Any, gradient: Any) -> Any:
        xz, conv_weight, conv_bias, projected, x_weight, delta_weight, out_weight, *rest = (
            ctx.saved_tensors
        )
        a, b, c, d, delta_bias, between, out = rest
        rows, rank, states = xz.shape[-1], delta_weight.shape[1], a.shape[-1]
        x, z = xz.chunk(2, dim=1)
        gradient = _along(gradient)
        convolved = causal_conv1d_fwd_function(x, conv_weight, conv_bias, None, None, None, True)
        delta = rows_last(delta_weight @ projected[:, :rank].t(), rows)
        whole = torch.empty_like(xz)
        dx, dz = whole.chunk(2, dim=1)
        flat = gradient.flatten(0, 1).t()
        dy = rows_last(out_weight.t() @ flat, rows)
        of = (convolved, delta, a, b, c, d, z, delta_bias, dy, between, out)
        made = kernels.bwd(*of, dz, ctx.delta_softplus, True)
        d_convolved, d_delta, of_a, of_b, of_c, of_d, of_bias, _, gated = made
        of_out = torch.einsum("eB,dB->ed", flat, joined(gated))
        of_out_bias = gradient.sum((0, 1)) if ctx.has_bias else None
        d_projected = torch.empty_like(projected)
        if ctx.varies[0]:
            d_projected[:, rank : rank + states] = joined(of_b.squeeze(1)).t()
            of_b = None
        if ctx.varies[1]:
            d_projected[:, -states:] = joined(of_c.squeeze(1)).t()
            of_c = None
        d_delta = joined(d_delta)
        of_delta = torch.einsum("dB,Br->dr", d_delta, projected[:, :rank])
        d_projected[:, :rank] = torch.einsum("dB,dr->Br", d_delta, delta_weight)
        d_convolved = joined(d_convolved)
        of_x = torch.einsum("Br,Bd->rd", d_projected, joined(convolved).t())
        d_convolved = torch.addmm(d_convolved, x_weight.t(), d_projected.t(), out=d_convolved)
        d_convolved = rows_last(d_convolved, rows)
        _, of_conv, of_conv_bias, _ = causal_conv1d_bwd_function(
            x, conv_weight, conv_bias, d_convolved, None, None, None, dx, False, True
        )
        first = (whole, of_conv.unsqueeze(1), of_conv_bias, of_x, of_delta, of_out, of_out_bias)
        return (*first, of_a, of_b, of_c, of_d, of_bias, None)


def mamba_inner_fn(
    xz: Any,
    conv1d_weight: Any,
    conv1d_bias: Any,
    x_proj_weight: Any,
    delta_proj_weight: Any,
    out_proj_weight: Any,
    out_proj_bias: Any,
    A: Any,  # noqa: N803
    B: Any = None,  # noqa: N803
    C: Any = None,  # noqa: N803
    D: Any = None,  # noqa: N803
    delta_bias: Any = None,
    B_proj_bias: Any = None,  # noqa: N803
    C_proj_bias: Any = None,  # noqa: N803
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Any = None,
    c_rms_weight: Any = None,
    dt_rms_weight: Any = None,
    b_c_dt_rms_eps: float = 1e-6,  # noqa: ARG001
) -> Any:
    """Computes all of a Mamba layer except its first projection."""
    unusual = (B_proj_bias, C_proj_bias, b_rms_weight, c_rms_weight, dt_rms_weight)
    if checkpoint_lvl != 1 or any(one is not None for one in unusual):
        raise NotImplementedError(
            "plimsoll's stand-in for mamba_ssm has no norms or biases within mamba_inner_fn"
        )
    weights = (conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight)
    last = (out_proj_weight, out_proj_bias, A, B, C, D, delta_bias, delta_softplus)
    return _Block.apply(xz, *weights, *last)
