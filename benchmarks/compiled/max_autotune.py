"""Trains a perceptron in bfloat16. max-autotune tunes its matrix products."""

import torch
from torch import nn


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048))
    model = model.to("cuda", torch.bfloat16)
    run = torch.compile(model, mode="max-autotune") if compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(8192, 2048, device="cuda", dtype=torch.bfloat16)
        loss = run(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        on_step(step)


if __name__ == "__main__":
    main()
