"""Trains a graph neural network on graphs of 60 sizes. Each node sums its incoming messages."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU())
        self.update = nn.GRUCell(width, width)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        sent = self.message(torch.cat([nodes[edges[0]], nodes[edges[1]]], 1))
        return self.update(torch.zeros_like(nodes).index_add_(0, edges[1], sent), nodes)


def main(steps=90, width=256, layers=4):
    torch.manual_seed(0)
    net = nn.ModuleList(Layer(width) for _ in range(layers)).to("cuda")
    head = nn.Linear(width, 1).to("cuda")
    parameters = [*net.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-4)
    for step in range(steps):
        count = 4000 + 700 * (step * 37 % 60)
        nodes = torch.randn(count, width, device="cuda")
        edges = torch.randint(count, (2, 6 * count), device="cuda")
        for layer in net:
            nodes = layer(nodes, edges)
        loss = head(nodes).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
