"""flex_attention that is not compiled keeps its scores: 16 heads of 8192 rows, and a backward pass.

Needs: torch
"""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def causal(batch, head, query, key):
    return query >= key


def relative_bias(score, batch, head, query, key):
    return score + (key - query) * 2.0 ** (-0.5 * (head + 1))


heads, length, width = 16, 8192, 64
shape = (1, heads, length, width)
query, key, value = (
    torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
)
mask = create_block_mask(causal, None, None, length, length, device="cuda")
out = flex_attention(query, key, value, score_mod=relative_bias, block_mask=mask)
out.sum().backward()
torch.cuda.synchronize()
print("done: one step")
