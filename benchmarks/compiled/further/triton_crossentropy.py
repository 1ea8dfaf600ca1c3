"""Trains with a fused cross entropy in Triton that writes the gradient in place."""

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK": 4096}, num_warps=w) for w in (4, 8, 16)],
    key=["V"],
    restore_value=["X"],
)
@triton.jit
def _ce(X, T, L, V, stride, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    t = tl.load(T + r)
    m = -float("inf")
    d = 0.0
    for i in range(0, V, BLOCK):
        c = i + tl.arange(0, BLOCK)
        x = tl.load(X + r * stride + c, mask=c < V, other=-float("inf")).to(tl.float32)
        n = tl.maximum(m, tl.max(x))
        d = d * tl.exp(m - n) + tl.sum(tl.exp(x - n))
        m = n
    tl.store(L + r, m + tl.log(d) - tl.load(X + r * stride + t).to(tl.float32))
    for i in range(0, V, BLOCK):
        c = i + tl.arange(0, BLOCK)
        x = tl.load(X + r * stride + c, mask=c < V, other=-float("inf")).to(tl.float32)
        g = tl.exp(x - m) / d
        g = tl.where(c == t, g - 1.0, g)
        tl.store(X + r * stride + c, g, mask=c < V)


class CE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, t):
        losses = torch.empty(x.shape[0], device=x.device)
        _ce[(x.shape[0],)](x, t, losses, x.shape[1], x.stride(0))
        ctx.save_for_backward(x)
        return losses.mean()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x * (g / x.shape[0]), None


def main(steps=5, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    body = torch.nn.Sequential(
        torch.nn.Embedding(32000, 1024),
        torch.nn.Linear(1024, 4096),
        torch.nn.GELU(),
        torch.nn.Linear(4096, 1024),
    ).to("cuda", torch.bfloat16)
    head = torch.nn.Linear(1024, 32000, bias=False).to("cuda", torch.bfloat16)
    run = torch.compile(body) if compile else body
    opt = torch.optim.AdamW([*body.parameters(), *head.parameters()])
    for s in range(steps):
        i = torch.randint(0, 32000, (4096,), device="cuda")
        CE.apply(head(run(i)), i).backward()
        opt.step()
        opt.zero_grad()
        on_step(s)
