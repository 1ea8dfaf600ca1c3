"""Tensors of many sizes, every second one freed, and a large one."""

import torch

x = [torch.empty(i << 20, dtype=torch.uint8, device="cuda") for i in range(1, 60)]
del x[::2]
y = torch.empty(700 << 20, dtype=torch.uint8, device="cuda")
