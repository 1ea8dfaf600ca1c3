"""Trains a model of residual layers.

python residual_layers.py --batch-size N
"""

import argparse
from typing import Any

import torch
from torch import nn


class Model(nn.Module):  # type: ignore[misc]
    """Six residual layers, each with two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(6)
        )

    def forward(self, x: Any) -> Any:
        """Returns the sum of x and the layers' outputs."""
        for layer in self.layers:
            x = x + layer(x)
        return x


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
model = Model().to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    x = torch.randn(parser.parse_args().batch_size, 512, device="cuda")
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
