"""Trains torchvision's ConvNeXt tiny: channels last, autocast fp16 with scaler, SGD."""

import torch
from torchvision.models import convnext_tiny


def main(steps=5, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = convnext_tiny().cuda().to(memory_format=torch.channels_last)
    run = torch.compile(model) if compile else model
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    for s in range(steps):
        x = torch.randn(32, 3, 224, 224, device="cuda").contiguous(
            memory_format=torch.channels_last
        )
        y = torch.randint(0, 1000, (32,), device="cuda")
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(run(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        on_step(s)
