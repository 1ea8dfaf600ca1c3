"""Trains a diffusion U-Net to predict noise: bf16 autocast, AdamW, averaged weights."""

import copy

import torch
from torch import nn
from torch.nn import functional

BATCH, SIZE, WIDTH, STEPS = 32, 64, 160, 6


class Residual(nn.Module):
    """Two convolutions, between which the time embedding is added."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(32, before), nn.GroupNorm(32, after)
        self.conv_1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv_2 = nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(4 * WIDTH, after)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Maps [batch, before, h, w] to [batch, after, h, w]."""
        h = self.conv_1(functional.silu(self.norm_1(x)))
        h = h + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv_2(functional.silu(self.norm_2(h)))


class Attention(nn.Module):
    """Self-attention over all positions of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the input's shape."""
        batch, width, high, wide = x.shape
        parts = self.qkv(self.norm(x)).view(batch, 3, 8, width // 8, high * wide)
        q, k, v = parts.transpose(-1, -2).unbind(1)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(-1, -2)
        return x + self.out(y.reshape(batch, width, high, wide))


class UNet(nn.Module):
    """A U-Net: downsampling, a middle, and upsampling."""

    def __init__(self) -> None:
        super().__init__()
        widths = [WIDTH, 2 * WIDTH, 4 * WIDTH]
        self.time = nn.Sequential(
            nn.Linear(1, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, 4 * WIDTH)
        )
        self.first = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.down, self.up, self.shrink, self.grow = (nn.ModuleList() for _ in range(4))
        before = WIDTH
        for width in widths:
            self.down.append(nn.ModuleList([Residual(before, width), Residual(width, width)]))
            self.shrink.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
            before = width
        self.middle = nn.ModuleList([Residual(before, before), Attention(before)])
        for width in reversed(widths):
            self.grow.append(nn.ConvTranspose2d(before, width, 2, stride=2))
            self.up.append(nn.ModuleList([Residual(2 * width, width), Residual(width, width)]))
            before = width
        self.last = nn.Conv2d(WIDTH, 3, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Takes images [batch, 3, h, w] and times [batch], and returns the predicted noise."""
        time = self.time(t[:, None])
        h, kept = self.first(x), []
        for (one, two), shrink in zip(self.down, self.shrink, strict=True):
            h = two(one(h, time), time)
            kept.append(h)
            h = shrink(h)
        residual, attention = self.middle
        h = attention(residual(h, time))
        for (one, two), grow in zip(self.up, self.grow, strict=True):
            h = torch.cat([grow(h), kept.pop()], dim=1)
            h = two(one(h, time), time)
        return self.last(h)


def main() -> None:
    """Trains for a few steps."""
    torch.manual_seed(0)
    net = UNet().cuda()
    average = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for step in range(STEPS):
        images = torch.randn(BATCH, 3, SIZE, SIZE, device="cuda")
        noise = torch.randn_like(images)
        t = torch.rand(BATCH, device="cuda")
        noisy = images * (1 - t)[:, None, None, None] + noise * t[:, None, None, None]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.mse_loss(net(noisy, t), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), net.parameters(), strict=True):
                mean.lerp_(weight, 0.001)
        print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
