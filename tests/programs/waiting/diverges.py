"""Loops for ever; plimsoll knows each value that the loop reads."""

import sys

import torch

print("turning", file=sys.stderr, flush=True)
x = torch.tensor(1.0, device="cuda")
while x.item() > 0:
    x = x * 1.0000001 + 0.001
