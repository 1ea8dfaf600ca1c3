"""Keeps 3 GiB. Three times, allocates another 2 GiB and frees them again."""

import torch

kept = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")


def forward() -> torch.Tensor:
    """Allocates 2 GiB."""
    return torch.empty(2 << 30, dtype=torch.uint8, device="cuda")  # spills into host memory


for _ in range(3):
    spilled = forward()
    del spilled
