"""xformers' SwiGLU, computed with PyTorch's operations.

The code follows xformers/ops of xformers 0.0.33.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional


def swiglu(
    x: Any,
    w1: Any,
    b1: Any,
    w2: Any,
    b2: Any,
    w3: Any,
    b3: Any,
    *,
    op: Any = None,  # noqa: ARG001
) -> Any:
    """Computes w3(silu(w1(x)) * w2(x)), where w1, w2 and w3 are linear layers."""
    gate = functional.silu(functional.linear(x, w1, b1))
    return functional.linear(gate * functional.linear(x, w2, b2), w3, b3)


class SwiGLU(nn.Module):  # type: ignore[misc]
    """SwiGLU as a module."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.w12 = nn.Linear(in_features, 2 * hidden_features, bias=bias)
        self.w3 = nn.Linear(hidden_features, out_features or in_features, bias=bias)

    def forward(self, x: Any) -> Any:
        """Returns `swiglu` of `x` with the module's weights."""
        of_gate, of_rest = self.w12.weight.chunk(2)
        biases = (None, None) if self.w12.bias is None else self.w12.bias.chunk(2)
        return swiglu(x, of_gate, biases[0], of_rest, biases[1], self.w3.weight, self.w3.bias)
