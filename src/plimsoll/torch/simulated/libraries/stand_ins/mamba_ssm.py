"""mamba-ssm: the selective scan, the fused block and the layer of the first Mamba.

Read from mamba_ssm/ops/selective_scan_interface.py and modules/mamba_simple.py of mamba-ssm 2.3.
What is written in Triton there is not here: Mamba2 needs the package itself, which can be installed
without its kernels for a GPU.
"""

from __future__ import annotations

import math
from typing import Any

import selective_scan_cuda as kernels  # type: ignore[import-not-found]
import torch
from causal_conv1d import (  # type: ignore[import-not-found]
    causal_conv1d_bwd_function,
    causal_conv1d_fn,
    causal_conv1d_fwd_function,
    causal_conv1d_update,
)
from torch import nn
from torch.nn import functional

__version__ = "2.3.0"


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
        du, ddelta, of_a, of_b, of_c, of_d, of_bias, *gate = kernels.bwd(
            u,
            delta,
            a,
            b,
            c,
            d,
            z,
            delta_bias,
            _along(gradient),
            states,
            out,
            None,
            ctx.delta_softplus,
            False,
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
    """The scan over the rows of a sequence."""
    how = (delta_bias, delta_softplus, return_last_state)
    return _Scan.apply(u, delta, A, B, C, D, z, *how)


def _rows_last(flat: Any, rows: int) -> Any:
    """Channels by all rows, as sequences of channels by rows."""
    return flat.unflatten(1, (-1, rows)).transpose(0, 1)


def _flat(sequences: Any) -> Any:
    """The reverse."""
    return sequences.transpose(0, 1).flatten(1)


class _Block(torch.autograd.Function):  # type: ignore[misc]
    """The whole of a Mamba layer but its first projection; two results are computed again."""

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
        projected = functional.linear(_flat(convolved).t(), x_weight)
        delta = _rows_last(delta_weight @ projected[:, :rank].t(), rows)
        ctx.varies = (b is None, c is None)
        if b is None:
            b = _rows_last(projected[:, rank : rank + states].t(), rows).unsqueeze(1).contiguous()
        if c is None:
            c = _rows_last(projected[:, -states:].t(), rows).unsqueeze(1).contiguous()
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
        delta = _rows_last(delta_weight @ projected[:, :rank].t(), rows)
        whole = torch.empty_like(xz)
        dx, dz = whole.chunk(2, dim=1)
        flat = gradient.flatten(0, 1).t()
        dy = _rows_last(out_weight.t() @ flat, rows)
        made = kernels.bwd(
            convolved,
            delta,
            a,
            b,
            c,
            d,
            z,
            delta_bias,
            dy,
            between,
            out,
            dz,
            ctx.delta_softplus,
            True,
        )
        d_convolved, d_delta, of_a, of_b, of_c, of_d, of_bias, _, gated = made
        of_out = torch.einsum("eB,dB->ed", flat, _flat(gated))
        of_out_bias = gradient.sum((0, 1)) if ctx.has_bias else None
        d_projected = torch.empty_like(projected)
        if ctx.varies[0]:
            d_projected[:, rank : rank + states] = _flat(of_b.squeeze(1)).t()
            of_b = None
        if ctx.varies[1]:
            d_projected[:, -states:] = _flat(of_c.squeeze(1)).t()
            of_c = None
        d_delta = _flat(d_delta)
        of_delta = torch.einsum("dB,Br->dr", d_delta, projected[:, :rank])
        d_projected[:, :rank] = torch.einsum("dB,dr->Br", d_delta, delta_weight)
        d_convolved = _flat(d_convolved)
        of_x = torch.einsum("Br,Bd->rd", d_projected, _flat(convolved).t())
        d_convolved = torch.addmm(d_convolved, x_weight.t(), d_projected.t(), out=d_convolved)
        d_convolved = _rows_last(d_convolved, rows)
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
    """The whole of a Mamba layer but its first projection."""
    unusual = (B_proj_bias, C_proj_bias, b_rms_weight, c_rms_weight, dt_rms_weight)
    if checkpoint_lvl != 1 or any(one is not None for one in unusual):
        raise NotImplementedError(
            "plimsoll's stand-in for mamba_ssm has no norms or biases within mamba_inner_fn"
        )
    weights = (conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight)
    last = (out_proj_weight, out_proj_bias, A, B, C, D, delta_bias, delta_softplus)
    return _Block.apply(xz, *weights, *last)


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
    """One step of the scan, which changes the state."""
    out = torch.empty_like(x)
    moved = sum(one.nbytes for one in (state, state, x, dt, A, B, C, D, z, out) if one is not None)
    torch.ops.plimsoll.launch([out, state], moved, [], [], torch.float32)
    return out


class Mamba(nn.Module):  # type: ignore[misc]
    """A layer of the first Mamba."""

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | str = "auto",
        dt_min: float = 0.001,
        dt_max: float = 0.1,
        dt_init: str = "random",
        dt_scale: float = 1.0,
        dt_init_floor: float = 1e-4,
        conv_bias: bool = True,
        bias: bool = False,
        use_fast_path: bool = True,
        layer_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        inner = int(expand * d_model)
        rank = math.ceil(d_model / 16) if isinstance(dt_rank, str) else dt_rank
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner, self.dt_rank = inner, rank
        self.use_fast_path, self.layer_idx = use_fast_path, layer_idx
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=bias, **made)
        self.conv1d = nn.Conv1d(
            inner, inner, d_conv, groups=inner, padding=d_conv - 1, bias=conv_bias, **made
        )
        self.activation, self.act = "silu", nn.SiLU()
        self.x_proj = nn.Linear(inner, rank + 2 * d_state, bias=False, **made)
        self.dt_proj = nn.Linear(rank, inner, bias=True, **made)
        deviation = rank**-0.5 * dt_scale
        if dt_init == "constant":
            nn.init.constant_(self.dt_proj.weight, deviation)
        else:
            nn.init.uniform_(self.dt_proj.weight, -deviation, deviation)
        low, high = math.log(dt_min), math.log(dt_max)
        steps = torch.exp(torch.rand(inner, **made) * (high - low) + low).clamp(min=dt_init_floor)
        with torch.no_grad():
            self.dt_proj.bias.copy_(steps + torch.log(-torch.expm1(-steps)))
        powers = torch.arange(1, d_state + 1, dtype=torch.float32, device=device)
        self.A_log = nn.Parameter(torch.log(powers.expand(inner, -1).contiguous()))
        self.D = nn.Parameter(torch.ones(inner, device=device))
        self.out_proj = nn.Linear(inner, d_model, bias=bias, **made)

    def forward(self, hidden_states: Any, inference_params: Any = None) -> Any:
        """Whole sequences, or the next token of a cached one."""
        rows = hidden_states.shape[1]
        conv_state = ssm_state = None
        if inference_params is not None:
            conv_state, ssm_state = self._cached(inference_params, hidden_states.shape[0])
            if inference_params.seqlen_offset > 0:
                return self.step(hidden_states, conv_state, ssm_state)[0]
        xz = _rows_last(self.in_proj.weight @ hidden_states.flatten(0, 1).t(), rows)
        if self.in_proj.bias is not None:
            xz = xz + self.in_proj.bias.to(xz.dtype)[:, None]
        decay = -torch.exp(self.A_log.float())
        if self.use_fast_path and inference_params is None:
            projections = (self.x_proj.weight, self.dt_proj.weight, self.out_proj.weight)
            return mamba_inner_fn(
                xz,
                self.conv1d.weight,
                self.conv1d.bias,
                *projections,
                self.out_proj.bias,
                decay,
                None,
                None,
                self.D.float(),
                delta_bias=self.dt_proj.bias.float(),
            )
        x, z = xz.chunk(2, dim=1)
        if conv_state is not None:
            conv_state.copy_(functional.pad(x, (self.d_conv - rows, 0)))
        weight = self.conv1d.weight.squeeze(1)
        x = causal_conv1d_fn(x, weight, self.conv1d.bias, activation=self.activation)
        projected = self.x_proj(_flat(x).t())
        sizes = [self.dt_rank, self.d_state, self.d_state]
        delta, b, c = torch.split(projected, sizes, dim=-1)
        delta = _rows_last(self.dt_proj.weight @ delta.t(), rows)
        b, c = (_rows_last(one.t(), rows).contiguous() for one in (b, c))
        of = (x, delta, decay, b, c, self.D.float(), z, self.dt_proj.bias.float())
        y = selective_scan_fn(*of, True, ssm_state is not None)
        if ssm_state is not None:
            y, last = y
            ssm_state.copy_(last)
        return self.out_proj(y.transpose(1, 2))

    def step(self, hidden_states: Any, conv_state: Any, ssm_state: Any) -> Any:
        """The next token, whose states are kept."""
        x, z = self.in_proj(hidden_states.squeeze(1)).chunk(2, dim=-1)
        weight = self.conv1d.weight.squeeze(1)
        x = causal_conv1d_update(x, conv_state, weight, self.conv1d.bias, self.activation)
        sizes = [self.dt_rank, self.d_state, self.d_state]
        delta, b, c = torch.split(self.x_proj(x), sizes, dim=-1)
        delta = functional.linear(delta, self.dt_proj.weight)
        decay = -torch.exp(self.A_log.float())
        y = selective_state_update(ssm_state, x, delta, decay, b, c, self.D, z=z)
        return self.out_proj(y).unsqueeze(1), conv_state, ssm_state

    def allocate_inference_cache(
        self,
        batch_size: int,
        max_seqlen: int,  # noqa: ARG002
        dtype: Any = None,
        **_: Any,
    ) -> Any:
        """The states of sequences that are generated."""
        device = self.out_proj.weight.device
        return tuple(
            torch.zeros(
                batch_size,
                self.d_inner,
                width,
                device=device,
                dtype=like.dtype if dtype is None else dtype,
            )
            for width, like in (
                (self.d_conv, self.conv1d.weight),
                (self.d_state, self.dt_proj.weight),
            )
        )

    def _cached(self, parameters: Any, batch: int) -> Any:
        cache = parameters.key_value_memory_dict
        if self.layer_idx not in cache:
            cache[self.layer_idx] = self.allocate_inference_cache(batch, 0)
        return cache[self.layer_idx]


def _in_triton(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"plimsoll has no stand-in for mamba_ssm's {name}, which is written in Triton: install "
            "the package itself, which needs no GPU (pip install --no-build-isolation mamba-ssm)"
        )

    return refuse


Mamba2 = _in_triton("Mamba2")
mamba_chunk_scan_combined = _in_triton("mamba_chunk_scan_combined")
mamba_split_conv1d_scan_combined = _in_triton("mamba_split_conv1d_scan_combined")
RMSNorm = _in_triton("RMSNorm")
layer_norm_fn = _in_triton("layer_norm_fn")
rms_norm_fn = _in_triton("rms_norm_fn")
