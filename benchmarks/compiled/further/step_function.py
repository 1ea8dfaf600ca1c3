"""Compiles one function with forward, loss and backward, using compiled autograd."""

import torch
from torch import nn


def main(steps=5, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(1024, 4096), nn.GELU(), nn.LayerNorm(4096), nn.Linear(4096, 1024)
    ).cuda()
    opt = torch.optim.AdamW(model.parameters())

    def step(x, y):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    run = step
    if compile:
        torch._dynamo.config.compiled_autograd = True
        run = torch.compile(step)
    for s in range(steps):
        x = torch.randn(4096, 1024, device="cuda")
        y = torch.randn(4096, 1024, device="cuda")
        run(x, y)
        opt.step()
        opt.zero_grad()
        on_step(s)
