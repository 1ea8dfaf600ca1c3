"""Trains a GPT in plain PyTorch. Options set batch, precision, checkpointing and attention."""

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCABULARY = 32000


class Block(nn.Module):
    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.before(x))
        return x + self.down(functional.gelu(self.up(self.between(x))))


def main(steps=12, batch=8, precision="fp32", recompute=False, fused=True, layers=8, width=768,
         length=512):  # fmt: skip
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    tokens, places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
    blocks = nn.ModuleList(Block(width, width // 64, fused) for _ in range(layers))
    norm, head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
    model = nn.ModuleList([tokens, places, blocks, norm, head]).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(steps):
        data = torch.randint(VOCABULARY, (batch, length + 1), device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            x = tokens(data[:, :-1]) + places(torch.arange(length, device="cuda"))
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
            logits = head(norm(x))
            loss = functional.cross_entropy(logits.view(-1, VOCABULARY), data[:, 1:].reshape(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
