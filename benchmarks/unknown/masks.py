"""Trains with random masks: masked language modelling, and randomly dropped samples."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(2)
B, S, D, V = (32, 512, 768, 30000)
emb = nn.Embedding(V, D).cuda()
body = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D)).cuda()
head = nn.Linear(D, V).cuda()
ps = [*emb.parameters(), *body.parameters(), *head.parameters()]
opt = torch.optim.AdamW(ps, 0.0001)
for _step in range(4):
    ids = torch.randint(0, V, (B, S), device="cuda")
    mask = torch.rand(B, S, device="cuda") < 0.15
    keep = torch.bernoulli(torch.full((B,), 0.8, device="cuda")).bool()
    h = body(emb(ids[keep]))
    sel = mask[keep]
    logits = head(h[sel])
    loss = functional.cross_entropy(logits, ids[keep][sel])
    opt.zero_grad()
    loss.backward()
    opt.step()
