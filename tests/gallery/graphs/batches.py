"""GIN classifies batches of small graphs of many sizes.

Needs: torch_geometric
"""

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, MLP, global_add_pool, global_mean_pool

torch.manual_seed(0)


def molecule():
    nodes = int(torch.randint(100, 400, ()))
    return Data(
        x=torch.randn(nodes, 64),
        edge_index=torch.randint(0, nodes, (2, 8 * nodes)),
        y=torch.randint(0, 2, (1,)),
    )


loader = DataLoader([molecule() for _ in range(512)], batch_size=128)
body = GIN(64, 512, num_layers=4, norm="batch_norm").cuda()
head = MLP([1024, 512, 2], norm="batch_norm", dropout=0.3).cuda()
parameters = [*body.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)
for batch in loader:
    batch = batch.to("cuda")
    nodes = body(batch.x, batch.edge_index)
    graphs = torch.cat(
        [
            global_add_pool(nodes, batch.batch, batch.num_graphs),
            global_mean_pool(nodes, batch.batch, batch.num_graphs),
        ],
        dim=1,
    )
    loss = cross_entropy(head(graphs), batch.y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done:", len(loader), "batches")
