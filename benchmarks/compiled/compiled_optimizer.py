"""Trains a perceptron: the model runs eagerly, and the optimizer is compiled."""

import torch
from torch import nn


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    layers = [part for _ in range(12) for part in (nn.Linear(2048, 2048), nn.GELU())]
    model = nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    update = torch.compile(optimizer.step) if compile else optimizer.step
    for step in range(steps):
        x = torch.randn(4096, 2048, device="cuda")
        loss = model(x).square().mean()
        loss.backward()
        update()
        optimizer.zero_grad()
        on_step(step)


if __name__ == "__main__":
    main()
