"""GraphSAGE trains full-batch on a random graph with a hundred thousand nodes.

Needs: torch_geometric
"""

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

torch.manual_seed(0)
nodes, edges = 100_000, 1_000_000
graph = Data(
    x=torch.randn(nodes, 128),
    edge_index=torch.randint(0, nodes, (2, edges)),
    y=torch.randint(0, 40, (nodes,)),
).to("cuda")


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([SAGEConv(128, 256), SAGEConv(256, 256)])
        self.last = SAGEConv(256, 40)

    def forward(self, x, edge_index):
        for layer in self.layers:
            x = torch.dropout(layer(x, edge_index).relu(), 0.5, self.training)
        return self.last(x, edge_index)


model = Network().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    loss = cross_entropy(model(graph.x, graph.edge_index), graph.y)
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    labels = model(graph.x, graph.edge_index).argmax(1)
print("done:", labels.numel(), "nodes")
