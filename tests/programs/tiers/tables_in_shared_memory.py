"""Keeps 100 MiB in a region in host memory, and 50 MiB on the card."""

import torch

import plimsoll

MIB = 1 << 20

with plimsoll.region("tables", prefer="shared"):
    table = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
x = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
