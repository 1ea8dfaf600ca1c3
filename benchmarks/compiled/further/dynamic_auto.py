"""Trains a hand-written decoder on sequences of varying lengths, with automatic dynamic shapes."""

import torch
from torch import nn


class Att(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)
        self.n1 = nn.LayerNorm(d)
        self.n2 = nn.LayerNorm(d)
        self.f = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        return x + self.f(self.n2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(8000, 512)
        self.l = nn.ModuleList([Att(512, 8) for _ in range(4)])
        self.h = nn.Linear(512, 8000, bias=False)

    def forward(self, i):
        x = self.e(i)
        for layer in self.l:
            x = layer(x)
        return self.h(x)


def main(steps=7, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = LM().to("cuda", torch.bfloat16)
    run = torch.compile(model) if compile else model
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for s, t in zip(range(steps), [512, 640, 384, 700, 512, 800, 640], strict=False):
        i = torch.randint(0, 8000, (8, t), device="cuda")
        out = run(i)
        loss = nn.functional.cross_entropy(out.float().view(-1, 8000), i.view(-1))
        loss.backward()
        opt.step()
        opt.zero_grad()
        on_step(s)
