"""Changes allocator settings before importing PyTorch."""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch

x = torch.empty(1 << 20, device="cuda")
assert torch.cuda.memory_snapshot()[0]["is_expandable"]
