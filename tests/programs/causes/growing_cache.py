"""Concatenates a cache of keys in each step, or writes to one that is allocated once."""

import sys

import torch

steps, layers, width = 64, 8, 1 << 20
caches = [torch.empty(0, width, device="cuda") for _ in range(layers)]
if "fault" not in sys.argv:
    caches = [torch.empty(steps, width, device="cuda") for _ in range(layers)]
for step in range(steps):
    for layer in range(layers):
        key = torch.randn(1, width, device="cuda")
        if "fault" in sys.argv:
            caches[layer] = torch.cat([caches[layer], key])
        else:
            caches[layer][step] = key
