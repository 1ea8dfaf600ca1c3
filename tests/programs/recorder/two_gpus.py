"""Allocates ten tensors on the first GPU, eleven on the second."""

import torch

for device in (0, 1):
    kept = [torch.empty(1 << 20, device=device) for _ in range(10 + device)]
