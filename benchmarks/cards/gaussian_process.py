"""Fits a Gaussian process: factorizes dense matrices and solves linear systems."""

import torch

points = torch.linspace(0, 1, 3000, device="cuda")[:, None]
values = torch.sin(12 * points)
scale = torch.tensor(0.1, device="cuda", requires_grad=True)
noise = torch.tensor(0.1, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam([scale, noise], lr=0.01)
for _ in range(3):
    distances = (points - points.T) / scale
    kernel = torch.exp(-0.5 * distances**2) + noise**2 * torch.eye(3000, device="cuda")
    factor = torch.linalg.cholesky(kernel)
    solved = torch.cholesky_solve(values, factor)
    loss = (values * solved).sum() + 2 * factor.diagonal().log().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
