"""Sorts tokens by expert, and multiplies once for each expert.

The host reads how many tokens each expert gets, because the sizes of the products depend on it.
"""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(1)
D, H, E, T = (1024, 4096, 16, 16384)
gate = nn.Linear(D, E, device="cuda")
w1 = nn.Parameter(torch.randn(E, D, H, device="cuda") * 0.02)
w2 = nn.Parameter(torch.randn(E, H, D, device="cuda") * 0.02)
opt = torch.optim.SGD([*gate.parameters(), w1, w2], 0.001)
for _step in range(4):
    x = torch.randn(T, D, device="cuda", requires_grad=True)
    p, e = gate(x).softmax(-1).max(-1)
    order = e.argsort()
    counts = torch.bincount(e, minlength=E).tolist()
    parts = x[order].split(counts)
    ys = []
    for i, part in enumerate(parts):
        if part.shape[0]:
            ys.append(functional.gelu(part @ w1[i]) @ w2[i])
    y = torch.cat(ys)[order.argsort()] * p[:, None]
    loss = y.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
