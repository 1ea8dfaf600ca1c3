"""A model trains on sequences of different lengths in one jagged nested tensor, without padding.

Needs: torch
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.joint(self.first_norm(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.second_norm(x))))


class Tagger(nn.Module):
    def __init__(self, width: int = 768, heads: int = 12, layers: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(32000, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).values()


torch.manual_seed(0)
model = Tagger().to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    lengths = [96 + (37 * i + 11 * step) % 640 for i in range(32)]
    sequences = [torch.randint(32000, (length,)) for length in lengths]
    tokens = torch.nested.nested_tensor(sequences, layout=torch.jagged, device="cuda")
    labels = torch.randint(20, (sum(lengths),), device="cuda")
    loss = F.cross_entropy(model(tokens).float(), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print("done: 3 steps")
