"""Trains a ResNet-50 in fp32 with backend=aot_eager."""

import torch
from torchvision.models import resnet50


def main(steps=4, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = resnet50().cuda()
    run = torch.compile(model, backend="aot_eager") if compile else model
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for s in range(steps):
        x = torch.randn(16, 3, 224, 224, device="cuda")
        y = torch.randint(0, 1000, (16,), device="cuda")
        loss = torch.nn.functional.cross_entropy(run(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        on_step(s)
