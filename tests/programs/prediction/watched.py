"""Trains briefly, and prints results. Calls each function that plimsoll wraps to watch a script."""

import argparse
import subprocess

import torch
from torch import nn

torch.manual_seed(0)
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=3)
steps = parser.parse_args().steps
subprocess.run(["true"], check=True)
model = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.Linear(8, 4)).cuda()
model(torch.randn(2, 2, 4, device="cuda"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader([torch.ones(2, 4) * i for i in range(8)], 4, num_workers=1)
for _, batch in zip(range(steps), data, strict=False):
    loss = nn.functional.cross_entropy(model(batch.cuda()), torch.zeros(4, device="cuda").long())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.reset_peak_memory_stats()
scripted = torch.jit.script(nn.CrossEntropyLoss())
print(float(scripted(torch.zeros(2, 4), torch.tensor([0, 1]))))
print([tuple(p.shape) for p in model.parameters()], torch.cuda.memory_allocated())
