"""Trains a decoder like GPT-2 from scratch: plain PyTorch, bf16 autocast, fused AdamW.

    python gpt2_adamw.py [SNAPSHOT]

examples/recordings/gpt2_adamw.pickle.gz is a recording of this script with PyTorch 2.11 on an H100;
its call stacks name lines of this file. With SNAPSHOT, the script records itself into that file.
"""

import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCAB, WIDTH, HEADS, DEPTH, CONTEXT, BATCH = 50304, 768, 12, 12, 1024, 8


class Block(nn.Module):  # type: ignore[misc]
    """Attention and a feed-forward network of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        """Returns the input of the next block."""
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(functional.gelu(self.up(self.ln2(x))))


class Decoder(nn.Module):  # type: ignore[misc]
    """The whole model."""

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.ln = nn.LayerNorm(WIDTH)

    def forward(self, ids: Any, targets: Any) -> Any:
        """Returns the loss."""
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.ln(x) @ self.tok.weight.T
        return functional.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def main(steps: int = 4) -> None:
    """Trains for some steps."""
    torch.manual_seed(0)
    model = Decoder().to("cuda")
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for step in range(steps):
        ids = torch.randint(0, VOCAB, (BATCH, CONTEXT), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(ids, ids.roll(-1, 1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    if snapshot := sys.argv[1:]:
        torch.cuda.memory._record_memory_history()
        main()
        torch.cuda.memory._dump_snapshot(snapshot[0])
    else:
        main()
