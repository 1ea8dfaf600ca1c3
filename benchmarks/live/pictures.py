"""Trains a detector's backbone, channels last, on pictures of many shapes."""

import torch
from torch import nn
from torch.nn import functional


class Backbone(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        pairs = list(zip((3, *widths), widths, strict=False))
        self.stages = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(into, out, 3, 2, 1), nn.GroupNorm(16, out), nn.SiLU(),
                nn.Conv2d(out, out, 3, padding=1), nn.GroupNorm(16, out), nn.SiLU(),
            )
            for into, out in pairs
        )  # fmt: skip
        self.side = nn.ModuleList(nn.Conv2d(width, 128, 1) for width in widths)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for stage, side in zip(self.stages, self.side, strict=True):
            x = stage(x)
            found.append(side(x))
        for fine, coarse in zip(
            range(len(found) - 2, -1, -1), range(len(found) - 1, 0, -1), strict=True
        ):
            found[fine] = found[fine] + functional.interpolate(found[coarse], found[fine].shape[2:])
        return found


def main(steps=48):
    torch.manual_seed(0)
    model = Backbone((64, 128, 256, 512)).to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for step in range(steps):
        high, wide = 320 + 32 * (step * 7 % 13), 320 + 32 * (step * 5 % 11)
        images = torch.randn(6, 3, high, wide, device="cuda").to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            maps = model(images)
        boxes = torch.cat([each.flatten(2) for each in maps], 2).float()
        best = boxes.amax(1).topk(200, 1).indices
        loss = boxes.gather(2, best[:, None].expand(-1, boxes.shape[1], -1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
