"""PyTorch Geometric's GCN trains on a graph whose edges are an index tensor.

Needs: torch-geometric
Sizes depend on data.
"""

import torch
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCN

nodes, edges, features, classes = 100_000, 1_000_000, 128, 40

torch.manual_seed(0)
data = Data(
    x=torch.randn(nodes, features),
    edge_index=torch.randint(nodes, (2, edges)),
    y=torch.randint(classes, (nodes,)),
).to("cuda")
model = GCN(features, 256, num_layers=3, out_channels=classes, dropout=0.5).to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(3):
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data.x, data.edge_index), data.y)
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    found = model(data.x, data.edge_index).argmax(dim=1)
torch.cuda.synchronize()
print(tuple(found.shape))
print("done: 3 steps")
