"""A recommender's large embeddings have sparse gradients, which SparseAdam takes.

Needs: torch
"""

import torch
from torch import nn
from torch.nn import functional as F

users, items, width, batch = 400_000, 300_000, 128, 65_536


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width, sparse=True)
        self.items = nn.Embedding(items, width, sparse=True)
        self.history = nn.EmbeddingBag(items, width, sparse=True, mode="mean")

    def forward(self, user, item, seen):
        wanted = self.users(user) + self.history(seen)
        return (wanted * self.items(item)).sum(dim=1)


torch.manual_seed(0)
model = Towers().to("cuda")
optimizer = torch.optim.SparseAdam(model.parameters(), lr=1e-3)
for step in range(3):
    start = torch.arange(batch) * 3 + step
    user, item = (start % users).to("cuda"), (start * 7 % items).to("cuda")
    seen = (start[:, None] * 11 + torch.arange(8)).remainder(items).to("cuda")
    liked = (start % 2).float().to("cuda")
    loss = F.binary_cross_entropy_with_logits(model(user, item, seen), liked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
print("done: 3 steps")
