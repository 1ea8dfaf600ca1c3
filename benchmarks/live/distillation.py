"""Trains a student whose teacher runs one batch ahead, on a stream of its own."""

import torch
from torch import nn
from torch.nn import functional


def network(widths: list[int]) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, padding=1)]
    for into, out in zip(widths, widths[1:], strict=False):
        layers += [nn.BatchNorm2d(into), nn.ReLU(), nn.Conv2d(into, out, 3, 2, 1)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 1000)
    )


def main(steps=30, batch=64, size=96):
    torch.manual_seed(0)
    teacher = network([128, 256, 512, 1024]).to("cuda").eval()
    student = network([64, 128, 256, 512]).to("cuda")
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    stream = torch.cuda.Stream()

    def ahead() -> tuple[torch.Tensor, torch.Tensor]:
        with torch.cuda.stream(stream), torch.no_grad():
            images = torch.randn(batch, 3, size, size, device="cuda")
            with torch.autocast("cuda", torch.float16):
                return images, teacher(images)

    images, wanted = ahead()
    for _ in range(steps):
        here = torch.cuda.current_stream()
        here.wait_stream(stream)
        now, aim = images, wanted
        for tensor in (now, aim):
            tensor.record_stream(here)
        images, wanted = ahead()
        with torch.autocast("cuda", torch.bfloat16):
            logits = student(now)
        loss = functional.kl_div(
            logits.float().log_softmax(1), aim.float().softmax(1), reduction="batchmean"
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
