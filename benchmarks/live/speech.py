"""Trains a speech encoder on utterances of many lengths, in fp16 with a scaled loss."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(80, width, 3, padding=1),
            nn.GELU(),
            nn.Conv1d(width, width, 3, 2, 1),
            nn.GELU(),
        )
        block = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.front(sound).transpose(1, 2)))


def main(steps=40, width=512, layers=8, classes=512):
    torch.manual_seed(0)
    model = Encoder(width, layers, classes).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(steps):
        frames = 400 + 90 * (step * 11 % 17)
        batch = max(4, 24000 // frames)
        sound = torch.randn(batch, 80, frames, device="cuda")
        with torch.autocast("cuda", torch.float16):
            logits = model(sound).log_softmax(-1)
        texts = torch.randint(1, classes, (batch, 40), device="cuda")
        length = torch.full((batch,), logits.shape[1], device="cuda")
        loss = nn.functional.ctc_loss(
            logits.transpose(0, 1), texts, length, torch.full_like(length, 40)
        )
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    main()
