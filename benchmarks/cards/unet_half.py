"""Trains a U-Net that has transposed convolutions, in half precision with a GradScaler."""

import torch
from torch import nn


def block(inside, out):
    return nn.Sequential(
        *(nn.Conv2d(inside, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()),
        *(nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()),
    )


class Net(nn.Module):
    def __init__(self, widths=(48, 96, 192, 384)):
        super().__init__()
        self.down = nn.ModuleList(block(a, b) for a, b in zip((3, *widths), widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.join = nn.ModuleList(block(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(widths[0], 5, 1)

    def forward(self, x):
        kept = []
        for layer in self.down:
            x = layer(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = kept.pop()
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return self.head(x)


model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters())
scaler = torch.amp.GradScaler()
for _ in range(3):
    images = torch.randn(6, 3, 320, 320, device="cuda")
    classes = torch.randint(5, (6, 320, 320), device="cuda")
    with torch.autocast("cuda", torch.float16):
        loss = nn.functional.cross_entropy(model(images), classes)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
