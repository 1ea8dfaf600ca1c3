"""Gaussian process regression: the marginal likelihood by Cholesky, and gradients through it.

Needs: torch
"""

import math

import torch

points, tests, width = 6000, 2000, 8

torch.manual_seed(0)
x = torch.randn(points, width, device="cuda")
y = torch.sin(x.sum(dim=1)) + 0.1 * torch.randn(points, device="cuda")
scale = torch.zeros(width, device="cuda", requires_grad=True)
noise = torch.tensor(-1.0, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam([scale, noise], lr=0.05)


def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    distance = torch.cdist(a * scale.exp(), b * scale.exp())
    return torch.exp(-0.5 * distance.square())


for _ in range(3):
    covariance = kernel(x, x) + noise.exp() * torch.eye(points, device="cuda")
    factor = torch.linalg.cholesky(covariance)
    weights = torch.cholesky_solve(y[:, None], factor)[:, 0]
    fit = 0.5 * y @ weights + factor.diagonal().log().sum() + 0.5 * points * math.log(2 * math.pi)
    optimizer.zero_grad()
    fit.backward()
    optimizer.step()

with torch.no_grad():
    at = torch.randn(tests, width, device="cuda")
    factor = torch.linalg.cholesky(kernel(x, x) + noise.exp() * torch.eye(points, device="cuda"))
    across = kernel(at, x)
    mean = across @ torch.cholesky_solve(y[:, None], factor)
    spread = torch.linalg.solve_triangular(factor, across.t(), upper=False)
    variance = 1 - spread.square().sum(dim=0)
torch.cuda.synchronize()
print(tuple(mean.shape), tuple(variance.shape))
print("done: 3 steps")
