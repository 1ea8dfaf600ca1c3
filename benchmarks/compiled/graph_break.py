"""Trains a perceptron with a graph break in the middle. The batch's length changes once."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width=2048):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.LayerNorm(4 * width))
        self.second = nn.Sequential(nn.Linear(4 * width, width), nn.SiLU(), nn.Linear(width, 512))

    def forward(self, x):
        hidden = self.first(x)
        torch._dynamo.graph_break()
        return self.second(hidden * torch.sigmoid(hidden))


def main(steps=8, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = Model().to("cuda")
    run = torch.compile(model) if compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(4096 if step < 3 else 6144, 2048, device="cuda")
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        on_step(step)


if __name__ == "__main__":
    main()
