"""Trains a small compiled U-Net in fp32 with Adam and a mean squared error."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.n = nn.GroupNorm(8, i)
        self.a = nn.Conv2d(i, o, 3, padding=1)
        self.m = nn.GroupNorm(8, o)
        self.b = nn.Conv2d(o, o, 3, padding=1)
        self.s = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x):
        h = self.a(nn.functional.silu(self.n(x)))
        return self.b(nn.functional.silu(self.m(h))) + self.s(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.i = nn.Conv2d(3, 64, 3, padding=1)
        self.d1 = Block(64, 128)
        self.d2 = Block(128, 256)
        self.mid = Block(256, 256)
        self.u2 = Block(512, 128)
        self.u1 = Block(256, 64)
        self.o = nn.Conv2d(64, 3, 1)

    def forward(self, x):
        x = self.i(x)
        a = self.d1(x)
        b = self.d2(nn.functional.avg_pool2d(a, 2))
        m = self.mid(b)
        u = self.u2(torch.cat([m, b], 1))
        u = nn.functional.interpolate(u, scale_factor=2, mode="nearest")
        return self.o(self.u1(torch.cat([u, a], 1)))


def main(steps=5, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = Net().cuda()
    run = torch.compile(model) if compile else model
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    for s in range(steps):
        x = torch.randn(16, 3, 64, 64, device="cuda")
        loss = nn.functional.mse_loss(run(x), torch.randn_like(x))
        loss.backward()
        opt.step()
        opt.zero_grad()
        on_step(s)
