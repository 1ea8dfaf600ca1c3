"""Runs inference with a hand-written Triton matrix product, tuned over a few configurations."""

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"ROWS": rows, "COLUMNS": columns, "TERMS": 64}, num_warps=warps, num_stages=3)
    for rows, columns, warps in ((64, 64, 4), (128, 64, 4), (128, 128, 8))
]


@triton.autotune(configs=CONFIGS, key=["m", "n", "k"])
@triton.heuristics({"IS_EVEN": lambda args: args["k"] % args["TERMS"] == 0})
@triton.jit
def product(
    a, b, c, m, n, k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TERMS: tl.constexpr, IS_EVEN: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(n, COLUMNS)
    rows = tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, k, TERMS):
        terms = start + tl.arange(0, TERMS)
        a_mask, b_mask = rows[:, None] < m, columns[None, :] < n
        if not IS_EVEN:
            a_mask = a_mask & (terms[None, :] < k)
            b_mask = b_mask & (terms[:, None] < k)
        left = tl.load(a + rows[:, None] * k + terms[None, :], mask=a_mask, other=0.0)
        right = tl.load(b + terms[:, None] * n + columns[None, :], mask=b_mask, other=0.0)
        sums = tl.dot(left, right, sums)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], sums.to(tl.bfloat16), mask=inside)


def multiply(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=a.dtype)

    def grid(chosen):
        return (triton.cdiv(m, chosen["ROWS"]) * triton.cdiv(n, chosen["COLUMNS"]),)

    product[grid](a, b, c, m, n, k)
    return c


def main(steps=6, compile=True, on_step=lambda step: None):
    torch.manual_seed(0)
    weights = [torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(4)]

    def model(x):
        for weight in weights:
            x = torch.nn.functional.silu(multiply(x, weight)) * 0.02 + x
        return x

    run = torch.compile(model) if compile else model
    with torch.no_grad():
        for step in range(steps):
            x = torch.randn(32768, 4096, device="cuda", dtype=torch.bfloat16)
            y = run(x)
            del x, y
            on_step(step)


if __name__ == "__main__":
    main()
