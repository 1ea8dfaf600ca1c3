"""Resets the peak statistics after the peak."""

import torch

torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
assert torch.cuda.max_memory_allocated() == 1 << 20
