"""Calls `flex_attention` without torch.compile."""

import torch
from torch.nn.attention.flex_attention import flex_attention

q, k, v = (torch.randn(1, 4, 2048, 64, device="cuda") for _ in range(3))
flex_attention(q, k, v)
