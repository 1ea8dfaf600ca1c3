"""Behaviours of `torch.compile(mode="reduce-overhead")`.

In this mode PyTorch records CUDA graphs, and sets their memory pool back to earlier states.
"""

from __future__ import annotations

import importlib.util
import shutil
from typing import Any

import torch

from tests.gpu.behaviours.behaviour import Observed, UnavailableError, at_most, behaviour
from tests.gpu.behaviours.tools import stat


def need_a_compiler() -> None:
    """Raises UnavailableError if Triton or a C compiler is missing."""
    if importlib.util.find_spec("triton") is None:
        raise UnavailableError("there is no Triton")
    if not any(map(shutil.which, ("gcc", "cc", "clang"))):
        raise UnavailableError("there is no C compiler")


@behaviour()
def compiled_functions_replay_with_new_inputs() -> Observed:
    need_a_compiler()

    def program(x: Any, y: Any) -> Any:
        return (x @ y).relu() + x.sum(), (x - y).square()

    compiled = torch.compile(program, mode="reduce-overhead")
    close, sums = [], []
    for step in range(8):
        torch.manual_seed(step)
        x, y = (torch.randn(256, 256, device="cuda") for _ in range(2))
        torch.compiler.cudagraph_mark_step_begin()
        outs = [out.clone() for out in compiled(x, y)]
        expected = program(x, y)
        close.append(
            [
                torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3)
                for ours, theirs in zip(outs, expected, strict=True)
            ]
        )
        sums.append(float(outs[1].sum().item()).hex())
    return {"close": close, "sums": sums}


@behaviour(elastic={"reserved": at_most})
def compiled_models_train() -> Observed:
    need_a_compiler()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
    ).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, close = [], []
    for step in range(8):
        torch.manual_seed(step)
        batch = torch.randn(64, 128, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        expected = model(batch).square().mean().item()
        loss = compiled(batch).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        close.append(abs(losses[-1] - expected) < 1e-4)
    return {
        "losses": [loss.hex() for loss in losses],
        "close": close,
        "reserved": torch.cuda.memory_reserved(),
        "num_ooms": stat("num_ooms"),
    }


@behaviour()
def paths_of_a_compiled_function_share_a_pool() -> Observed:
    need_a_compiler()

    @torch.compile(mode="reduce-overhead")  # type: ignore[untyped-decorator]
    def first(x: Any) -> Any:
        return x * 2 + 1

    @torch.compile(mode="reduce-overhead")  # type: ignore[untyped-decorator]
    def second(x: Any) -> Any:
        return x.square() - 3

    @torch.compile(mode="reduce-overhead")  # type: ignore[untyped-decorator]
    def third(x: Any) -> Any:
        return x.relu() + x

    sums = []
    for step in range(10):
        x = torch.full((1024, 64), float(step), device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        middle = first(x)
        # The steps alternate between two paths, one with `third` and one without. The graphs of
        # both paths share one pool, so PyTorch sometimes restores an earlier state of the pool.
        out = second(middle) if step % 2 else third(second(middle))
        sums.append(out.sum().item())
        del middle, out
    return {"sums": sums}
