"""A vision transformer learns from mixed images, with stochastic depth and a fused optimizer."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, DEPTH, CLASSES = 384, 12, 1000


class Block(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.drop = drop
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 6, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def keep(self, x):
        if not self.training or self.drop == 0:
            return x
        mask = x.new_empty(len(x), 1, 1).bernoulli_(1 - self.drop)
        return x * mask / (1 - self.drop)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.keep(self.attention(y, y, y, need_weights=False)[0])
        return x + self.keep(self.mlp(self.norm2(x)))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, stride=16)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 197, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*[Block(0.1 * i / DEPTH) for i in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, images):
        x = self.patches(images).flatten(2).mT
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


torch.manual_seed(0)
model = ViT().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
beta = torch.distributions.Beta(0.8, 0.8)
for _ in range(3):
    images = torch.randn(64, 3, 224, 224, device="cuda")
    targets = F.one_hot(torch.randint(CLASSES, (64,), device="cuda"), CLASSES).float()
    share, order = beta.sample().item(), torch.randperm(64, device="cuda")
    images = share * images + (1 - share) * images[order]
    targets = share * targets + (1 - share) * targets[order]
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(images), targets, label_smoothing=0.1)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
print("done: 3 steps")
