"""A small denoising U-Net learns to predict noise in fp16, and keeps an average of its weights."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 1000


class Residual(nn.Module):
    def __init__(self, before, after, time=256):
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1)
        )
        self.time = nn.Linear(time, after)
        self.second = nn.Sequential(
            nn.GroupNorm(8, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1)
        )
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x, t):
        y = self.first(x) + self.time(t)[:, :, None, None]
        return self.second(y) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, widths=(64, 128, 256)):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 256))
        self.enter = nn.Conv2d(3, widths[0], 3, padding=1)
        pairs = list(zip(widths, widths[1:], strict=False))
        self.down = nn.ModuleList([Residual(a, b) for a, b in pairs])
        self.middle = Residual(widths[-1], widths[-1])
        self.up = nn.ModuleList([Residual(2 * b, a) for a, b in reversed(pairs)])
        self.leave = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, x, t):
        frequencies = torch.exp(-math.log(10000) * torch.arange(32, device=x.device) / 32)
        angles = t[:, None] * frequencies
        t = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x, kept = self.enter(x), []
        for block in self.down:
            x = block(x, t)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, t)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1), t)
        return self.leave(x)


torch.manual_seed(0)
model = UNet().cuda()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
scaler = torch.amp.GradScaler()
kept_signal = torch.cumprod(1 - torch.linspace(1e-4, 0.02, STEPS, device="cuda"), 0)
for _ in range(4):
    images = torch.rand(32, 3, 64, 64).cuda(non_blocking=True) * 2 - 1
    t = torch.randint(STEPS, (32,), device="cuda")
    noise = torch.randn_like(images)
    signal = kept_signal[t][:, None, None, None]
    with torch.autocast("cuda", torch.float16):
        guessed = model(signal.sqrt() * images + (1 - signal).sqrt() * noise, t.float())
    loss = F.mse_loss(guessed.float(), noise)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 0.001)
print(f"loss {loss.item():.3f}")
print("done: 4 steps")
