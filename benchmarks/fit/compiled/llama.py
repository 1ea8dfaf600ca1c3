"""Trains a small compiled Llama whose peak depends on the compiler's activation budget."""

from __future__ import annotations

import argparse

import torch
import torch._functorch.config
from torch import Tensor, nn
from torch.nn import functional

HIDDEN, HEADS, INNER, VOCABULARY = 1024, 16, 2816, 32_000


class Block(nn.Module):
    """Attention, then a gated feed-forward network, each with a pre-norm and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.RMSNorm(HIDDEN)
        self.queries_keys_values = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.before_network = nn.RMSNorm(HIDDEN)
        self.gate = nn.Linear(HIDDEN, INNER, bias=False)
        self.up = nn.Linear(HIDDEN, INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Takes and returns [batch, sequence, hidden]."""
        batch, length, _ = x.shape
        parts = self.queries_keys_values(self.before_attention(x))
        parts = parts.view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        queries, keys = (rotated(part, turns) for part in parts[:2])
        mixed = functional.scaled_dot_product_attention(queries, keys, parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, HIDDEN))
        y = self.before_network(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def rotated(x: Tensor, turns: Tensor) -> Tensor:
    """Applies rotary positions: rotates pairs, one value from each half of the last dimension."""
    first, second = x.float().chunk(2, -1)
    cosine, sine = turns.cos(), turns.sin()
    turned = torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)
    return turned.to(x.dtype)


class Llama(nn.Module):
    """A decoder that maps tokens to logits."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Takes tokens [batch, sequence]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        half = HIDDEN // HEADS // 2
        speeds = 10_000.0 ** (-torch.arange(half, device=tokens.device) / half)
        turns = positions[:, None] * speeds
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, turns)
        return self.head(self.norm(x))


parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--seq-len", type=int, default=2048)
parser.add_argument("--depth", type=int, default=8)
parser.add_argument("--budget", type=float, default=1.0)
parser.add_argument("--compiled", action="store_true")
arguments = parser.parse_args()

torch.manual_seed(0)
model = Llama(arguments.depth).to("cuda", torch.bfloat16)
if arguments.compiled:
    torch._functorch.config.activation_memory_budget = arguments.budget
    model.compile()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
shape = (arguments.batch_size, arguments.seq_len + 1)
for _ in range(4):
    tokens = torch.randint(VOCABULARY, shape, device="cuda")
    logits = model(tokens[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.4f} peak {torch.cuda.max_memory_allocated()}")
