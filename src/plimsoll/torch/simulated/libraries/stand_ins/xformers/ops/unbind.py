"""xformers' unbind, computed with PyTorch's operations.

The code follows xformers/ops of xformers 0.0.33.
"""

from __future__ import annotations

from typing import Any

import torch


class _Unbind(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int) -> Any:
        ctx.dim = dim
        return x.unbind(dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return torch.stack(gradients, dim=ctx.dim), None


def unbind(x: Any, dim: int) -> Any:
    """Works like `torch.unbind`; the backward pass stacks the gradients in one tensor."""
    return _Unbind.apply(x, dim)
