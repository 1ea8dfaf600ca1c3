"""mamba-ssm's norms with a gate: one kernel for the forward pass, one for the backward pass.

The code follows mamba_ssm/ops/triton/layernorm_gated.py of mamba-ssm 2.3. The memory of the real
kernels was not measured.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from plimsoll.torch.simulated.libraries.source_kernels import launch_kernel

_MOST_ROW_BYTES = 65536
"""The most bytes that a row may have within one group of channels."""


def _launch(read: Any, written: Any) -> None:
    launch_kernel("mamba_ssm", "mamba-ssm 2.3.0", read, written)


def _rows(x: Any) -> Any:
    """Reshapes a tensor to two dimensions, with contiguous rows."""
    x = x.reshape(-1, x.shape[-1])
    return x if x.stride(-1) == 1 else x.contiguous()


class _Norm(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, x: Any, weight: Any, bias: Any, z: Any, group_size: int, is_rms_norm: bool
    ) -> Any:
        shape = x.shape
        x, z = _rows(x), None if z is None else _rows(z)
        weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
        if group_size > _MOST_ROW_BYTES // x.element_size():
            raise RuntimeError("This layer norm doesn't support feature dim >= 64KB.")
        groups = x.shape[1] // group_size
        out = torch.empty_like(x)
        statistics = [
            x.new_empty(groups * x.shape[0], dtype=torch.float32) for _ in range(2 - is_rms_norm)
        ]
        _launch((x, weight, bias, z), (out, *statistics))
        ctx.save_for_backward(x, weight, bias, z, *statistics)
        ctx.shape, ctx.group_size = shape, group_size
        return out.reshape(shape)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        x, weight, bias, z, *statistics = ctx.saved_tensors
        gradient = _rows(gradient)
        dx, dz = torch.empty_like(x), None if z is None else torch.empty_like(z)
        block = min(
            _MOST_ROW_BYTES // x.element_size(), 1 << max(ctx.group_size - 1, 0).bit_length()
        )
        warps = min(max(block // 256, 1), 8)
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
        groups = x.shape[1] // ctx.group_size
        parts = math.ceil(processors * math.ceil(4 / warps) / groups)
        sums = [
            None if one is None else one.new_empty((parts, x.shape[1]), dtype=torch.float32)
            for one in (weight, bias)
        ]
        _launch((x, weight, bias, z, gradient, *statistics), (dx, dz, *sums))
        dweight, dbias = (
            None if part is None else part.sum(0).to(one.dtype)
            for part, one in zip(sums, (weight, bias), strict=True)
        )
        dz = None if dz is None else dz.reshape(ctx.shape)
        return dx.reshape(ctx.shape), dweight, dbias, dz, None, None


def layernorm_fn(
    x: Any,
    weight: Any,
    bias: Any,
    z: Any = None,
    eps: float = 1e-6,  # noqa: ARG001
    group_size: int | None = None,
    norm_before_gate: bool = True,  # noqa: ARG001
    is_rms_norm: bool = False,
) -> Any:
    """Normalizes each group of `group_size` channels, and multiplies by the gate silu(z)."""
    return _Norm.apply(x, weight, bias, z, group_size or x.shape[-1], is_rms_norm)


def rmsnorm_fn(
    x: Any,
    weight: Any,
    bias: Any,
    z: Any = None,
    eps: float = 1e-6,
    group_size: int | None = None,
    norm_before_gate: bool = True,
) -> Any:
    """Works like `layernorm_fn`, with the RMS norm."""
    return layernorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate, True)


class LayerNorm(nn.Module):  # type: ignore[misc]
    """`layernorm_fn` as a module."""

    _is_rms_norm = False

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        self.weight = nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        if self._is_rms_norm:
            self.register_parameter("bias", None)
        else:
            self.bias = nn.Parameter(torch.zeros(hidden_size, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        """Sets the weights to ones and the biases to zeros."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Any, z: Any = None) -> Any:
        """Returns `x` normalized, times the gate silu(z)."""
        return layernorm_fn(
            x, self.weight, self.bias, z, self.eps, self.group_size, self.norm_before_gate,
            self._is_rms_norm,
        )  # fmt: skip


class RMSNorm(LayerNorm):
    """`rmsnorm_fn` as a module."""

    _is_rms_norm = True
