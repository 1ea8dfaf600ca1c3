"""Trains a denoising U-Net in bf16: group norms, and attention at the bottom."""

import torch
from torch import nn
from torch.nn import functional


class Unit(nn.Module):
    def __init__(self, into: int, out: int, time: int) -> None:
        super().__init__()
        self.first, self.second = nn.GroupNorm(32, into), nn.GroupNorm(32, out)
        self.one, self.two = nn.Conv2d(into, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        y = (
            self.one(functional.silu(self.first(x)))
            + self.time(functional.silu(t))[:, :, None, None]
        )
        return self.skip(x) + self.two(functional.silu(self.second(y)))


class Net(nn.Module):
    def __init__(self, width: int = 128, time: int = 512) -> None:
        super().__init__()
        widths = [width, 2 * width, 2 * width, 4 * width]
        self.time = nn.Sequential(nn.Linear(1, time), nn.SiLU(), nn.Linear(time, time))
        self.begin, self.end = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        self.down, self.up, current = nn.ModuleList(), nn.ModuleList(), width
        self.smaller = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in widths)
        for w in widths:
            self.down.append(Unit(current, w, time))
            current = w
        self.attend = nn.MultiheadAttention(current, 8, batch_first=True)
        for w in reversed(widths):
            self.up.append(Unit(current + w, w, time))
            current = w

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        t, x, kept = self.time(t), self.begin(x), []
        for unit, smaller in zip(self.down, self.smaller, strict=True):
            x = unit(x, t)
            kept.append(x)
            x = smaller(x)
        flat = x.flatten(2).transpose(1, 2)
        x = x + self.attend(flat, flat, flat)[0].transpose(1, 2).reshape(x.shape)
        for unit in self.up:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = unit(torch.cat([x, kept.pop()], 1), t)
        return self.end(x)


def main(steps=12, batch=16, size=64, channels_last=False):
    torch.manual_seed(0)
    form = torch.channels_last if channels_last else torch.contiguous_format
    model = Net().to("cuda", memory_format=form)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        image = torch.randn(batch, 3, size, size, device="cuda").to(memory_format=form)
        noise, t = torch.randn_like(image), torch.rand(batch, 1, device="cuda")
        mixed = image * (1 - t[:, :, None, None]) + noise * t[:, :, None, None]
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.mse_loss(model(mixed, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
