"""The Mamba layer (of the first version, not Mamba2).

The code follows mamba_ssm/modules/mamba_simple.py of mamba-ssm 2.3.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from causal_conv1d import causal_conv1d_fn, causal_conv1d_update  # type: ignore[import-not-found]
from torch import nn
from torch.nn import functional

from ..ops.selective_scan_interface import joined, mamba_inner_fn, rows_last, selective_scan_fn
from ..ops.triton.selective_state_update import selective_state_update


class Mamba(nn.Module):  # type: ignore[misc]
    """A Mamba layer (of the first version, not Mamba2)."""

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
        """Computes whole sequences, or the next token of sequences whose states are cached."""
        rows = hidden_states.shape[1]
        conv_state = ssm_state = None
        if inference_params is not None:
            conv_state, ssm_state = self._cached(inference_params, hidden_states.shape[0])
            if inference_params.seqlen_offset > 0:
                return self.step(hidden_states, conv_state, ssm_state)[0]
        xz = rows_last(self.in_proj.weight @ hidden_states.flatten(0, 1).t(), rows)
        if self.in_proj.bias is not None:
            xz = xz + self.in_proj.bias.to(xz.dtype)[:, None]
        decay = -torch.exp(self.A_log.float())
        if self.use_fast_path and inference_params is None:
            convolution = (self.conv1d.weight, self.conv1d.bias)
            projections = (self.x_proj.weight, self.dt_proj.weight, self.out_proj.weight)
            scan = (decay, None, None, self.D.float(), self.dt_proj.bias.float())
            return mamba_inner_fn(xz, *convolution, *projections, self.out_proj.bias, *scan)
        x, z = xz.chunk(2, dim=1)
        if conv_state is not None:
            conv_state.copy_(functional.pad(x, (self.d_conv - rows, 0)))
        weight = self.conv1d.weight.squeeze(1)
        x = causal_conv1d_fn(x, weight, self.conv1d.bias, activation=self.activation)
        projected = self.x_proj(joined(x).t())
        sizes = [self.dt_rank, self.d_state, self.d_state]
        delta, b, c = torch.split(projected, sizes, dim=-1)
        delta = rows_last(self.dt_proj.weight @ delta.t(), rows)
        b, c = (rows_last(one.t(), rows).contiguous() for one in (b, c))
        of = (x, delta, decay, b, c, self.D.float(), z, self.dt_proj.bias.float())
        y = selective_scan_fn(*of, True, ssm_state is not None)
        if ssm_state is not None:
            y, last = y
            ssm_state.copy_(last)
        return self.out_proj(y.transpose(1, 2))

    def step(self, hidden_states: Any, conv_state: Any, ssm_state: Any) -> Any:
        """Computes the next token of each sequence, and updates the states."""
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
        """Allocates what token generation keeps: the states of the convolution and of the scan."""
        weights = ((self.d_conv, self.conv1d.weight), (self.d_state, self.dt_proj.weight))
        device = self.out_proj.weight.device
        return tuple(
            torch.zeros(batch_size, self.d_inner, width, device=device, dtype=dtype or like.dtype)
            for width, like in weights
        )

    def _cached(self, parameters: Any, batch: int) -> Any:
        cache = parameters.key_value_memory_dict
        if self.layer_idx not in cache:
            cache[self.layer_idx] = self.allocate_inference_cache(batch, 0)
        return cache[self.layer_idx]
