"""A deep encoder is checkpointed layer by layer, and gradients of four small batches add up."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Encoder(nn.Module):
    def __init__(self, words=32000, width=768, layers=12):
        super().__init__()
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.places = nn.Embedding(1024, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 12, 4 * width, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


torch.manual_seed(0)
model = Encoder().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
criterion = nn.CrossEntropyLoss(ignore_index=-100)
accumulate = 4
for step in range(2 * accumulate):
    ids = torch.randint(1, 32000, (4, 512), device="cuda")
    labels = ids.clone()
    labels[:, ::7] = -100
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(ids)
        loss = criterion(logits.flatten(0, 1), labels.flatten()) / accumulate
    loss.backward()
    if (step + 1) % accumulate == 0:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
print("done: 2 steps of 4 batches")
