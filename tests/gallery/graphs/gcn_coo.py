"""A graph network whose adjacency is a sparse matrix in COO layout, coalesced on the GPU.

Needs: torch
Sizes depend on data.
"""

import torch
from torch import nn
from torch.nn import functional as F

nodes, edges, width, classes = 100_000, 3_000_000, 128, 16

torch.manual_seed(0)
index = torch.randint(nodes, (2, edges), device="cuda")
adjacency = torch.sparse_coo_tensor(index, torch.ones(edges, device="cuda"), (nodes, nodes))
adjacency = (adjacency + adjacency.t()).coalesce()
row_sums = torch.sparse.sum(adjacency, dim=1).to_dense().clamp(min=1)

first = nn.Linear(width, width).to("cuda")
last = nn.Linear(width, classes).to("cuda")
optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1, momentum=0.9)
x = torch.randn(nodes, width, device="cuda")
labels = torch.randint(classes, (nodes,), device="cuda")
for _ in range(3):
    hidden = torch.sparse.mm(adjacency, F.relu(first(x))) / row_sums[:, None]
    scores = torch.sparse.mm(adjacency, last(hidden)) / row_sums[:, None]
    loss = F.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
print("done: 3 steps")
