"""Waits until a norm, whose value plimsoll does not know, equals an exact number."""

import torch

matrix = torch.randn(10000, 10000, device="cuda")
x = torch.randn(10000, device="cuda")
while True:
    y = matrix @ x
    if y.norm().item() == 0.123456:
        break
