"""A language model of Mamba layers trains under autocast.

Needs: mamba-ssm, causal-conv1d
Only simulated.
"""

import torch
from mamba_ssm import Mamba
from torch import nn


class Model(nn.Module):
    def __init__(self, words=32000, width=768, depth=12):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.norms = nn.ModuleList([nn.RMSNorm(width) for _ in range(depth)])
        self.layers = nn.ModuleList([Mamba(width, layer_idx=i) for i in range(depth)])
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(x)


torch.manual_seed(0)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    tokens = torch.randint(0, 32000, (4, 1024), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        scores = model(tokens)
    loss = nn.functional.cross_entropy(
        scores[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()
    )
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done: 3 steps")
