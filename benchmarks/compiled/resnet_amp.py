"""Trains a residual network in half precision: channels last, scaled gradients."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, into, width, stride):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(into, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.skip = (
            nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if stride != 1 or into != out
            else nn.Identity()
        )
        self.end = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.end(self.body(x) + self.skip(x))


def network():
    layers = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    into = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(into, width, stride), Block(4 * width, width, 1)]
        into = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 1000))


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = network().to("cuda", memory_format=torch.channels_last)
    run = torch.compile(model) if compile else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    loss_of = nn.CrossEntropyLoss()
    for step in range(steps):
        images = torch.randn(64, 3, 224, 224, device="cuda")
        images = images.to(memory_format=torch.channels_last)
        labels = torch.randint(1000, (64,), device="cuda")
        with torch.autocast("cuda", torch.float16):
            loss = loss_of(run(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        on_step(step)


if __name__ == "__main__":
    main()
