"""Allocates tensors of many sizes, frees every second tensor, and allocates a large tensor."""

import torch

x = [torch.empty(i << 20, dtype=torch.uint8, device="cuda") for i in range(1, 60)]
del x[::2]
y = torch.empty(700 << 20, dtype=torch.uint8, device="cuda")
