"""Trains a compiled model with gradient clipping and a compiled optimizer step."""

import torch
from torch import nn


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(1024, 1024), nn.SiLU()) for _ in range(6)]
    ).cuda()
    opt = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-3))
    run = torch.compile(model) if compile else model

    def update():
        opt.step()

    if compile:
        update = torch.compile(update)
    for s in range(steps):
        x = torch.randn(8192, 1024, device="cuda")
        run(x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update()
        opt.zero_grad()
        on_step(s)
