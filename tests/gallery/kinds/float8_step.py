"""A feed-forward layer trains with float8 products: torch._scaled_mm, forward and backward.

Needs: torch
"""

import torch
from torch import nn

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def to_float8(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    most = torch.finfo(dtype).max
    scale = most / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-most, most).to(dtype), scale.reciprocal()


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        left, left_scale = to_float8(x, E4)
        right, right_scale = to_float8(weight, E4)
        ctx.save_for_backward(x, weight)
        return torch._scaled_mm(
            left, right.t(), left_scale, right_scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        top, top_scale = to_float8(grad, E5)
        right, right_scale = to_float8(weight.t().contiguous(), E4)
        to_x = torch._scaled_mm(top, right.t(), top_scale, right_scale, out_dtype=torch.bfloat16)
        turned, turned_scale = to_float8(grad.t().contiguous(), E5)
        left, left_scale = to_float8(x.t().contiguous(), E4)
        to_weight = torch._scaled_mm(
            turned, left.t(), turned_scale, left_scale, out_dtype=torch.bfloat16
        )
        return to_x, to_weight


class Float8Linear(nn.Linear):
    def forward(self, x):
        return Product.apply(x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


width = 4096
layers = [Float8Linear(width, 4 * width, bias=False), nn.GELU(), Float8Linear(4 * width, width)]
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    x = torch.randn(4, 2048, width, device="cuda", dtype=torch.bfloat16)
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
print("done: 3 steps")
