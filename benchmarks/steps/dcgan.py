"""Trains a small GAN in fp32: transposed convolutions, batch norms, two optimizers."""

import torch
from torch import nn


def main(steps=20, batch=128, width=64):
    torch.manual_seed(0)

    def up(into: int, out: int, stride: int, padding: int) -> list[nn.Module]:
        layer = nn.ConvTranspose2d(into, out, 4, stride, padding, bias=False)
        return [layer, nn.BatchNorm2d(out), nn.ReLU(inplace=True)]

    def down(into: int, out: int) -> list[nn.Module]:
        layer = nn.Conv2d(into, out, 4, 2, 1, bias=False)
        return [layer, nn.BatchNorm2d(out), nn.LeakyReLU(0.2, inplace=True)]

    make = nn.Sequential(
        *up(100, 8 * width, 1, 0), *up(8 * width, 4 * width, 2, 1), *up(4 * width, 2 * width, 2, 1),
        *up(2 * width, width, 2, 1), nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh(),
    ).to("cuda")  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True),
        *down(width, 2 * width), *down(2 * width, 4 * width), *down(4 * width, 8 * width),
        nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Flatten(0),
    ).to("cuda")  # fmt: skip
    loss_of = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(batch, device="cuda"), torch.zeros(batch, device="cuda")
    of_make = torch.optim.Adam(make.parameters(), lr=2e-4, betas=(0.5, 0.999))
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for _ in range(steps):
        real = torch.randn(batch, 3, 64, 64, device="cuda")
        fake = make(torch.randn(batch, 100, 1, 1, device="cuda"))
        judge.zero_grad()
        loss = loss_of(judge(real), ones) + loss_of(judge(fake.detach()), zeros)
        loss.backward()
        of_judge.step()
        make.zero_grad()
        loss = loss_of(judge(fake), ones)
        loss.backward()
        of_make.step()


if __name__ == "__main__":
    main()
