"""Trains a classifier with a hand-written Triton softmax, forward and backward."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def softmax_forward(into, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    x = tl.load(into + row * columns + offsets, mask=inside, other=-float("inf")).to(tl.float32)
    powers = tl.exp(x - tl.max(x, axis=0))
    tl.store(out + row * columns + offsets, powers / tl.sum(powers, axis=0), mask=inside)


@triton.jit
def softmax_backward(result, gradient, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    y = tl.load(result + row * columns + offsets, mask=inside, other=0.0).to(tl.float32)
    dy = tl.load(gradient + row * columns + offsets, mask=inside, other=0.0).to(tl.float32)
    dot = tl.sum(y * dy, axis=0)
    tl.store(out + row * columns + offsets, y * (dy - dot), mask=inside)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        rows, columns = x.shape
        out = torch.empty_like(x)
        softmax_forward[(rows,)](x, out, columns, BLOCK=triton.next_power_of_2(columns))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        (result,) = ctx.saved_tensors
        rows, columns = result.shape
        out = torch.empty_like(result)
        block = triton.next_power_of_2(columns)
        softmax_backward[(rows,)](result, gradient.contiguous(), out, columns, BLOCK=block)
        return out


class Model(nn.Module):
    def __init__(self, width=1024, classes=8192):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU())
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x):
        return Softmax.apply(self.head(self.body(x)))


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = Model().to("cuda")
    run = torch.compile(model) if compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(8192, 1024, device="cuda")
        loss = run(x).square().sum(1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        on_step(step)


if __name__ == "__main__":
    main()
