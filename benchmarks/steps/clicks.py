"""Trains a click model: twenty embedding tables, a deep network, batches from the host."""

from itertools import pairwise

import torch
from torch import nn


def main(steps=20, batch=16384, rows=200_000, width=32):
    torch.manual_seed(0)
    tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(20)).to("cuda")
    sizes = [20 * width + 13, 1024, 512, 256]
    layers = [
        part
        for into, out in pairwise(sizes)
        for part in (nn.Linear(into, out), nn.ReLU(), nn.Dropout(0.2))
    ]
    net = nn.Sequential(*layers, nn.Linear(256, 1)).to("cuda")
    optimizer = torch.optim.Adagrad([*tables.parameters(), *net.parameters()], lr=0.01)
    dense = torch.randn(steps, batch, 13).pin_memory()
    sparse = torch.randint(rows, (steps, batch, 20)).pin_memory()
    labels = torch.rand(steps, batch).round().pin_memory()
    for step in range(steps):
        x = dense[step].to("cuda", non_blocking=True)
        i = sparse[step].to("cuda", non_blocking=True)
        y = labels[step].to("cuda", non_blocking=True)
        found = [table(i[:, n]) for n, table in enumerate(tables)]
        logits = net(torch.cat([x, *found], 1)).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
