"""Trains a classifier that is built of depthwise convolutions: channels last, bf16, SGD, EMA."""

import copy

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.BatchNorm2d(width)
        self.up, self.down = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)
        self.active = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.active(self.up(self.norm(self.wide(x)))))


def main(steps=12, batch=32, channels_last=True, amp=True):
    torch.manual_seed(0)
    form = torch.channels_last if channels_last else torch.contiguous_format
    parts: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4)]
    for width, depth in ((96, 3), (192, 3), (384, 9), (768, 3)):
        parts += [Block(width) for _ in range(depth)]
        if width < 768:
            parts += [nn.BatchNorm2d(width), nn.Conv2d(width, 2 * width, 2, 2)]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, 1000))
    model = model.to("cuda", memory_format=form)
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(steps):
        images = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=form)
        labels = torch.randint(1000, (batch,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=amp):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.001)


if __name__ == "__main__":
    main()
