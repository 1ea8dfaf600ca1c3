"""Computes the gradients of each sample of a batch."""

from typing import Any

import torch
from torch.func import functional_call, grad, vmap


def loss(parameters: dict[str, Any], x: Any) -> Any:
    """Returns the loss of one sample."""
    return functional_call(layer, parameters, (x,)).square().mean()


layer = torch.nn.Linear(1024, 1024).cuda()
x = torch.randn(8, 1, 1024, device="cuda")
gradients = vmap(grad(loss), (None, 0))(dict(layer.named_parameters()), x)
assert gradients["weight"].shape == (8, 1024, 1024)
layer(x)
