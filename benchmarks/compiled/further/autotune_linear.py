"""Trains three linear layers in float16, compiled with max-autotune."""

import torch
from torch import nn


def main(steps=5, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)
    ).to("cuda", torch.float16)
    run = torch.compile(model, mode="max-autotune") if compile else model
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for s in range(steps):
        x = torch.randn(4096, 1024, device="cuda", dtype=torch.float16)
        loss = run(x).float().square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        on_step(s)
