"""Resets the peak statistics after the peak, by PyTorch's functions for any accelerator."""

import torch

torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
torch.accelerator.empty_cache()
torch.accelerator.reset_peak_memory_stats()
torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
assert torch.accelerator.max_memory_allocated() == 1 << 20
