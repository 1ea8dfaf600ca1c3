"""Trains two networks, each with its own optimizer; each loss needs the other network's output."""

import torch
from torch import nn

maker = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 3072)).cuda()
judge = nn.Sequential(nn.Linear(3072, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1)).cuda()
of_maker = torch.optim.Adam(maker.parameters())
of_judge = torch.optim.Adam(judge.parameters())
loss = nn.BCEWithLogitsLoss()
for _ in range(4):
    real = torch.randn(2048, 3072).cuda()
    made = maker(torch.randn(2048, 128).cuda())
    of_judge.zero_grad()
    is_real = loss(judge(real), torch.ones(2048, 1).cuda())
    (is_real + loss(judge(made.detach()), torch.zeros(2048, 1).cuda())).backward()
    of_judge.step()
    of_maker.zero_grad()
    loss(judge(made), torch.ones(2048, 1).cuda()).backward()
    of_maker.step()
