"""The model that the jobs train: attention, gated layers, norms."""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal attention. Under tensor parallelism, each rank has some of the heads."""

    def __init__(self, width, heads):
        super().__init__()
        self.size = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        parts = [
            project(x).view(batch, length, -1, self.size).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        ]
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Gated(nn.Module):
    """A gated feed-forward layer (SwiGLU)."""

    def __init__(self, width, inner):
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention_norm = nn.RMSNorm(width)
        self.attention = Attention(width, heads)
        self.gated_norm = nn.RMSNorm(width)
        self.gated = Gated(width, inner)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.gated(self.gated_norm(x))


class Model(nn.Module):
    """A language model."""

    def __init__(self, words=32000, width=1024, heads=16, inner=2816, layers=12):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(logits, tokens):
    """Returns the loss of predicting the next token."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def tokens_of(batch, length, device, words=32000):
    """Returns a batch of random tokens."""
    return torch.randint(words, (batch, length), device=device)
