"""Generates with a KV cache that grows by concatenation, and trains a step on each answer."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, cache: list[torch.Tensor] | None) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
        if cache is not None:
            if cache:
                k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
            cache[:] = [k, v]
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.after(x))


def main(steps=6, batch=16, prompt=128, answer=96, width=1024, layers=8, vocabulary=32000):
    torch.manual_seed(0)
    table = nn.Embedding(vocabulary, width)
    blocks = nn.ModuleList(Block(width, 16) for _ in range(layers))
    model = nn.ModuleList([table, blocks]).to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for step in range(steps):
        words = torch.randint(vocabulary, (batch, prompt + 32 * step), device="cuda")
        caches: list[list[torch.Tensor]] = [[] for _ in blocks]
        with torch.no_grad():
            new = words
            for _ in range(answer):
                x = table(new)
                for block, cache in zip(blocks, caches, strict=True):
                    x = block(x, cache)
                new = (x[:, -1:] @ table.weight.T).argmax(-1)
                words = torch.cat([words, new], 1)
        del caches
        x = table(words)
        for block in blocks:
            x = block(x, None)
        logits = x[:, :-1] @ table.weight.T
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
