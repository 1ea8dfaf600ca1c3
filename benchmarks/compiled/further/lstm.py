"""Trains an LSTM with a compiled head and a graph break at the LSTM."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(5000, 512)
        self.l = nn.LSTM(512, 1024, 2, batch_first=True)
        self.h = nn.Linear(1024, 5000)

    def forward(self, x):
        return self.h(self.l(self.e(x))[0])


def main(steps=5, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = Net().cuda()
    run = torch.compile(model) if compile else model
    opt = torch.optim.Adam(model.parameters())
    for s in range(steps):
        x = torch.randint(0, 5000, (32, 128), device="cuda")
        loss = nn.functional.cross_entropy(run(x).flatten(0, 1), x.flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        on_step(s)
