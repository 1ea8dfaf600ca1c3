"""Trains a vision transformer in mixed precision. Its layers are PyTorch's encoder layers."""

import torch
from torch import nn


def main(steps=12, batch=64, amp=True):
    torch.manual_seed(0)
    cut = nn.Conv2d(3, 768, 16, stride=16)
    layer = nn.TransformerEncoderLayer(
        768, 12, 3072, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
    )
    model = nn.ModuleDict(
        {"cut": cut, "body": nn.TransformerEncoder(layer, 12), "head": nn.Linear(768, 1000)}
    ).to("cuda")
    place = nn.Parameter(torch.zeros(1, 196, 768, device="cuda"))
    optimizer = torch.optim.AdamW([*model.parameters(), place], lr=1e-3)
    scaler = torch.amp.GradScaler(enabled=amp)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for _ in range(steps):
        images = torch.randn(batch, 3, 224, 224, device="cuda")
        labels = torch.randint(1000, (batch,), device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=amp):
            x = model["cut"](images).flatten(2).transpose(1, 2) + place
            loss = criterion(model["head"](model["body"](x).mean(1)), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    main()
