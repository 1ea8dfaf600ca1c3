"""Trains transformer layers with flex_attention: a causal mask, and a bias by distance."""

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

HEADS, LENGTH = 16, 2048


def causal(batch, head, query, key):
    return query >= key


def by_distance(score, batch, head, query, key):
    return score - (query - key) * 0.01


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        parts = self.into(self.norm(x)).view(batch, length, 3, HEADS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = flex_attention(query, key, value, score_mod=by_distance, block_mask=mask)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Model(nn.Module):
    def __init__(self, width=1024, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return x


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = Model().to("cuda", torch.bfloat16)
    run = torch.compile(model) if compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    mask = create_block_mask(causal, None, None, LENGTH, LENGTH, device="cuda")
    for step in range(steps):
        x = torch.randn(8, LENGTH, 1024, device="cuda", dtype=torch.bfloat16)
        loss = run(x, mask).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        on_step(step)


if __name__ == "__main__":
    main()
