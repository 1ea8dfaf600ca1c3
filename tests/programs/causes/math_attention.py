"""Runs grouped-query attention with heads too wide for a fused kernel, or with narrower ones."""

import sys

import torch
from torch.nn.functional import scaled_dot_product_attention

width = 512 if "fault" in sys.argv else 128
query = torch.randn(1, 8, 2048, width, device="cuda", dtype=torch.bfloat16)
key = torch.randn(1, 2, 2048, width, device="cuda", dtype=torch.bfloat16)
scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)
