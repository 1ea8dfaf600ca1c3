"""A recommendation model sums bags of embeddings, multiplies pairs of sums, and learns clicks."""

import torch
from torch import nn

ROWS = [200_000, 50_000, 100_000, 10_000, 300_000, 1000, 60_000, 20_000]
WIDTH, BATCH, MOST = 64, 8192, 10


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, WIDTH, mode="sum") for rows in ROWS])
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, WIDTH), nn.ReLU())
        pairs = len(ROWS) * (len(ROWS) + 1) // 2
        self.top = nn.Sequential(
            nn.Linear(WIDTH + pairs, 1024),
            nn.ReLU(),
            nn.Linear(1024, 512),
            nn.ReLU(),
            nn.Linear(512, 1),
        )
        self.register_buffer("below", torch.tril_indices(len(ROWS) + 1, len(ROWS) + 1, -1))

    def forward(self, numbers, bags):
        x = self.bottom(numbers)
        found = [table(*bag) for table, bag in zip(self.tables, bags, strict=True)]
        all_of_them = torch.stack([x, *found], 1)
        products = torch.bmm(all_of_them, all_of_them.mT)
        return self.top(torch.cat([x, products[:, self.below[0], self.below[1]]], 1)).squeeze(1)


def batch(generator):
    bags = []
    for rows in ROWS:
        counts = torch.randint(1, MOST + 1, (BATCH,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)[:-1]])
        indices = torch.randint(rows, (int(counts.sum()),), generator=generator)
        bags.append((indices.cuda(), offsets.cuda()))
    numbers = torch.rand(BATCH, 13, generator=generator).log1p().cuda()
    return numbers, bags, (torch.rand(BATCH, generator=generator) < 0.25).float().cuda()


torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
model = Recommender().cuda()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
criterion = nn.BCEWithLogitsLoss()
for _ in range(4):
    numbers, bags, clicks = batch(generator)
    loss = criterion(model(numbers, bags), clicks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
print("done: 4 steps")
