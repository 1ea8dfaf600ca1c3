"""A pruned weight in BSR layout multiplies activations: blocks of 64, a third of them kept.

Needs: triton
Sizes depend on data.
"""

import torch

size, block, rows = 8192, 64, 4096

torch.manual_seed(0)
blocks = size // block
kept = (torch.arange(blocks)[:, None] * 5 + torch.arange(blocks)) % 3 == 0
mask = kept.repeat_interleave(block, 0).repeat_interleave(block, 1).to("cuda")
weight = torch.randn(size, size, device="cuda", dtype=torch.bfloat16) * mask
pruned = weight.to_sparse_bsr((block, block))
del weight, mask
x = torch.randn(size, rows, device="cuda", dtype=torch.bfloat16)
for _ in range(4):
    with torch.no_grad():
        x = torch.relu(pruned @ x) / size**0.5
torch.cuda.synchronize()
print(tuple(pruned.values().shape))
print("done: 4 products")
