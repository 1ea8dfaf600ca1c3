"""Sends each token to two of eight experts, which run one after another."""

import torch
from torch import nn

tokens, width, hidden, experts = 4096, 512, 2048, 8
torch.manual_seed(0)
gate = nn.Linear(width, experts, bias=False).cuda()
parts = nn.ModuleList(
    nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, width))
    for _ in range(experts)
).cuda()
optimizer = torch.optim.AdamW([*gate.parameters(), *parts.parameters()])
for _ in range(2):
    x = nn.functional.linear(
        torch.randn(tokens, 40_000, device="cuda"), torch.empty(width, 40_000, device="cuda")
    )
    weights, chosen = gate(x).softmax(-1).topk(2, -1)
    mask = nn.functional.one_hot(chosen, experts).permute(2, 1, 0)
    out = torch.zeros_like(x)
    for number, expert in enumerate(parts):
        place, token = torch.where(mask[number])
        if len(token):
            out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
    optimizer.zero_grad()
    out.square().mean().backward()
    optimizer.step()
