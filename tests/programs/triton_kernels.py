"""Triton kernels, and programs that launch them."""
# mypy: ignore-errors

import torch
import triton
import triton.language as tl


@triton.jit
def double(into, out, numbers, BLOCK: tl.constexpr):  # noqa: N803
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < numbers
    tl.store(out + places, 2 * tl.load(into + places, mask=inside), mask=inside)


@triton.jit
def gather(into, places, out, BLOCK: tl.constexpr):  # noqa: N803
    number = tl.arange(0, BLOCK)
    for _ in range(2):
        found = tl.load(into + tl.load(places + number))
        tl.store(out + tl.load(places + number), found.to(tl.int64))


@triton.jit
def total(into, places, out, BLOCK: tl.constexpr):  # noqa: N803
    found = tl.load(into + tl.load(places + tl.arange(0, BLOCK)))
    tl.store(out, tl.sum(found, axis=0) + tl.sum(tl.zeros((BLOCK,), tl.float32), axis=0))


@triton.jit
def describe(into, rows, columns, BLOCK: tl.constexpr):  # noqa: N803
    tensor = tl.make_tensor_descriptor(into, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    tensor.store([0, 0], tensor.load([0, 0]))


@triton.jit
def wrong(into, BLOCK: tl.constexpr):  # noqa: N803
    tl.store(into + tl.arange(0, BLOCK), tl.no_such_function(BLOCK))


def launch_wrong():
    wrong[(1,)](torch.zeros(16, device="cuda"), BLOCK=16)


if __name__ == "__main__":
    launch_wrong()
