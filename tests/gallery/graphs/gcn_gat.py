"""A GCN and a GAT of PyTorch Geometric train on one random graph.

Needs: torch_geometric
Sizes depend on data.
"""

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GAT, GCN
from torch_geometric.utils import to_undirected

torch.manual_seed(0)
nodes, edges = 50_000, 250_000
x = torch.randn(nodes, 128, device="cuda")
edge_index = to_undirected(torch.randint(0, nodes, (2, edges))).to("cuda")
labels = torch.randint(0, 10, (nodes,), device="cuda")

for model in (
    GCN(128, 256, num_layers=3, out_channels=10, dropout=0.5),
    GAT(128, 256, num_layers=2, out_channels=10, heads=4, dropout=0.5),
):
    model = model.cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        loss = cross_entropy(model(x, edge_index), labels)
        loss.backward()
        optimizer.step()
print("done: 2 networks")
