"""A graph convolutional network multiplies by a sparse adjacency matrix in CSR layout.

Needs: torch
Sizes depend on data.
"""

import torch
from torch import nn
from torch.nn import functional as F

nodes, features, hidden, classes = 200_000, 256, 256, 40

torch.manual_seed(0)
degree = 12
sources = torch.arange(nodes).repeat_interleave(degree)
targets = (sources * 31 + torch.arange(nodes * degree) % degree * 7919 + 1) % nodes
index = torch.stack([torch.cat([sources, targets]), torch.cat([targets, sources])])
adjacency = torch.sparse_coo_tensor(index, torch.ones(index.shape[1]), (nodes, nodes)).to("cuda")
adjacency = adjacency.coalesce().to_sparse_csr()
degrees = (adjacency.crow_indices()[1:] - adjacency.crow_indices()[:-1]).clamp(min=1)
scale = degrees.float().rsqrt()[:, None]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, classes)

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        return scale * torch.sparse.mm(adjacency, scale * x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.spread(self.first(x)))
        x = F.relu(self.spread(self.second(F.dropout(x, 0.5, self.training))))
        return self.last(x)


model = Network().to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(nodes, features, device="cuda")
labels = torch.randint(classes, (nodes,), device="cuda")
for _ in range(3):
    loss = F.cross_entropy(model(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
print("done: 3 steps")
