"""A Wasserstein GAN with gradient penalty: two optimizers, and a gradient of a gradient."""

import torch
from torch import nn

LATENT = 128


def generator():
    widths = (512, 256, 128, 64)
    layers = [nn.Linear(LATENT, widths[0] * 16), nn.Unflatten(1, (widths[0], 4, 4))]
    for a, b in zip(widths, (*widths[1:], 3), strict=True):
        layers += [
            nn.BatchNorm2d(a),
            nn.ReLU(True),
            nn.ConvTranspose2d(a, b, 4, stride=2, padding=1),
        ]
    return nn.Sequential(*layers, nn.Tanh())


def critic():
    widths = (3, 64, 128, 256, 512)
    layers = []
    for a, b in zip(widths, widths[1:], strict=False):
        layers += [nn.Conv2d(a, b, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 16, 1))


def penalty(judge, real, fake):
    share = torch.rand(len(real), 1, 1, 1, device=real.device)
    mixed = (share * real + (1 - share) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)
    return ((gradient.flatten(1).norm(dim=1) - 1) ** 2).mean()


torch.manual_seed(0)
make, judge = generator().cuda(), critic().cuda()
make_optimizer = torch.optim.Adam(make.parameters(), lr=1e-4, betas=(0.0, 0.9))
judge_optimizer = torch.optim.Adam(judge.parameters(), lr=1e-4, betas=(0.0, 0.9))
for _ in range(3):
    for _ in range(2):
        real = torch.rand(256, 3, 64, 64, device="cuda") * 2 - 1
        with torch.no_grad():
            fake = make(torch.randn(256, LATENT, device="cuda"))
        loss = judge(fake).mean() - judge(real).mean() + 10 * penalty(judge, real, fake)
        judge_optimizer.zero_grad()
        loss.backward()
        judge_optimizer.step()
    make_optimizer.zero_grad()
    (-judge(make(torch.randn(256, LATENT, device="cuda"))).mean()).backward()
    make_optimizer.step()
print("done: 3 steps of each")
