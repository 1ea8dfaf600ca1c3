"""A small GPT learns characters with bf16 autocast, gradient clipping and a cosine schedule."""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 8192, 512, 512, 8, 6


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.projections = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        batch, length, _ = x.shape
        heads = [
            t.view(batch, length, HEADS, -1).transpose(1, 2)
            for t in self.projections(x).chunk(3, -1)
        ]
        y = F.scaled_dot_product_attention(
            *heads, is_causal=True, dropout_p=0.1 if self.training else 0
        )
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False))
        self.head[1].weight = self.tokens.weight

    def forward(self, ids):
        return self.head(self.blocks(self.tokens(ids) + self.positions[: ids.shape[1]]))


torch.manual_seed(1337)
device = torch.device("cuda")
model = GPT().to(device)
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
text = torch.randint(VOCABULARY, (200_000,))
for _ in range(4):
    starts = torch.randint(len(text) - CONTEXT - 1, (16,))
    x = torch.stack([text[s : s + CONTEXT] for s in starts]).to(device)
    y = torch.stack([text[s + 1 : s + CONTEXT + 1] for s in starts]).to(device)
    with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x).view(-1, VOCABULARY), y.view(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
assert torch.isfinite(loss)
print("done: 4 steps")
