"""Trains with a hand-written Triton norm that `triton_op` registers as a PyTorch operation."""

import torch
import triton
import triton.language as tl
from torch import nn
from torch.library import triton_op, wrap_triton


@triton.jit
def norm_forward(into, weight, out, scales, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < columns
    x = tl.load(into + row * columns + offsets, mask=inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(x * x, axis=0) / columns + 1e-6)
    tl.store(scales + row, scale)
    w = tl.load(weight + offsets, mask=inside, other=0.0)
    tl.store(out + row * columns + offsets, x * scale * w, mask=inside)


@triton_op("plimsoll_benchmark::rms_norm", mutates_args={})
def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = x.shape
    out = torch.empty_like(x)
    scales = torch.empty(rows, device=x.device, dtype=torch.float32)
    block = triton.next_power_of_2(columns)
    wrap_triton(norm_forward)[(rows,)](x, weight, out, scales, columns, BLOCK=block)
    return out, scales


def keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output[1])


def backward(ctx, gradient, _):
    x, weight, scales = ctx.saved_tensors
    normal = x * scales[:, None]
    scaled = gradient * weight
    mean = (scaled * normal).mean(1, keepdim=True)
    return (scaled - normal * mean) * scales[:, None], (gradient * normal).sum(0)


rms_norm.register_autograd(backward, setup_context=keep)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.narrow(nn.functional.gelu(self.wide(rms_norm(x, self.weight)[0])))


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(1024) for _ in range(6))).to("cuda")
    run = torch.compile(model) if compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(8192, 1024, device="cuda")
        loss = run(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        on_step(step)


if __name__ == "__main__":
    main()
