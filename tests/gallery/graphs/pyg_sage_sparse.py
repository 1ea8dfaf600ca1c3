"""GraphSAGE of PyTorch Geometric with a sparse adjacency matrix instead of an index of edges.

Needs: torch-geometric
"""

import torch
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import to_torch_csr_tensor

nodes, features, hidden, classes = 100_000, 128, 256, 40

torch.manual_seed(0)
sources = torch.arange(nodes).repeat_interleave(10)
targets = (sources * 17 + torch.arange(10 * nodes) % 10 * 104729 + 3) % nodes
adjacency = to_torch_csr_tensor(torch.stack([sources, targets]), size=(nodes, nodes)).to("cuda")


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = SAGEConv(features, hidden)
        self.second = SAGEConv(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.first(x, adjacency)), adjacency)


model = Network().to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
x = torch.randn(nodes, features, device="cuda")
y = torch.randint(classes, (nodes,), device="cuda")
for _ in range(3):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
print("done: 3 steps")
