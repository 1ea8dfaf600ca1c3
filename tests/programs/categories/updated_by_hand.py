"""Trains leaf tensors that belong to no module, with a momentum that the program keeps itself."""

import torch

SIZE = 1024
first = torch.randn(SIZE, SIZE, device="cuda", requires_grad=True)
second = torch.randn(SIZE, SIZE, device="cuda", requires_grad=True)
momenta = [torch.zeros_like(first), torch.zeros_like(second)]
for _ in range(5):
    x = torch.randn(512, SIZE, device="cuda", requires_grad=True)  # a new leaf in each pass
    hidden = torch.relu(x @ first)
    loss = (hidden @ second).square().mean()
    loss.backward()
    with torch.no_grad():
        for weight, momentum in zip((first, second), momenta, strict=True):
            momentum.mul_(0.9).add_(weight.grad)
            weight.sub_(0.01 * momentum)
            weight.grad = None
