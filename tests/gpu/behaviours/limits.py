"""Behaviours of memory limits, and of programs that run out of memory."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import torch

from tests.gpu.behaviours.behaviour import Observed, anything, at_most, behaviour
from tests.gpu.behaviours.tools import GIB, MIB, empty, error_of, room_for, stat


@behaviour()
def fractions_are_checked() -> Observed:
    bad: dict[str, Any] = {"above": 1.5, "below": -0.1, "integer": 1, "text": "half"}
    seen: Observed = {
        name: error_of(partial(torch.cuda.set_per_process_memory_fraction, value))
        for name, value in bad.items()
    }
    torch.cuda.set_per_process_memory_fraction(0.25)
    seen["read_back"] = torch.cuda.memory.get_per_process_memory_fraction()
    return seen


@behaviour(elastic={"retries": anything})
def a_fraction_is_a_limit() -> Observed:
    before = torch.cuda.memory_allocated()
    with room_for(512 * MIB):
        too_much = error_of(lambda: empty(GIB))
        enough = empty(256 * MIB)
        inside = torch.cuda.memory_allocated() - before
    more = empty(GIB)
    seen: Observed = {
        "error": [too_much[0], too_much[1].split(" of which ")[0]],
        "inside": inside,
        "after": torch.cuda.memory_allocated() - before,
        "num_ooms": stat("num_ooms"),
        "retries": stat("num_alloc_retries"),
    }
    del enough, more
    return seen


@behaviour(elastic={"reserved": at_most})
def a_limit_below_what_is_reserved_stops_new_memory_only() -> Observed:
    held = empty(256 * MIB)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(128 * MIB / total)
    failed = error_of(lambda: empty(64 * MIB))[:1]
    held.fill_(3)
    del held
    reused = torch.ones(256 * MIB, dtype=torch.uint8, device="cuda")
    return {
        "failed": failed,
        "reused": reused[-1].item(),
        "reserved": torch.cuda.memory_reserved(),
    }


@behaviour()
def the_error_is_pytorchs() -> Observed:
    seen: Observed = {}
    try:
        empty(1 << 42)
    except torch.OutOfMemoryError as error:
        text = str(error)
        seen["classes"] = [kind.__name__ for kind in type(error).__mro__]
        seen["is_cuda_name"] = torch.cuda.OutOfMemoryError is type(error)
        seen["start"] = text.partition(" of which ")[0]
        seen["says"] = [
            word in text for word in ("is free", "Including non-PyTorch memory", "allocated")
        ]
        seen["arguments"] = len(error.args)
    return seen


@behaviour()
def more_than_an_exbibyte_is_refused() -> Observed:
    return {
        "error": error_of(lambda: empty((1 << 60) + 1)),
        "allocated": torch.cuda.memory_allocated(),
        "num_ooms": stat("num_ooms"),
    }


@behaviour()
def all_is_intact_after_running_out() -> Observed:
    kept = [torch.full((4 * MIB,), float(i), device="cuda") for i in range(8)]
    before = torch.cuda.memory_allocated()
    requests = stat("allocation.all.current")
    failures = [error_of(lambda: empty(1 << 42))[0] for _ in range(3)]
    return {
        "failures": failures,
        "num_ooms": stat("num_ooms"),
        "allocated_change": torch.cuda.memory_allocated() - before,
        "requests_change": stat("allocation.all.current") - requests,
        "sums": [tensor.double().sum().item() for tensor in kept],
        "new": torch.ones(MIB, device="cuda").sum().item(),
    }


@behaviour(elastic={"retries": anything, "reserved": at_most})
def cached_memory_is_used_before_a_request_fails() -> Observed:
    with room_for(512 * MIB):
        small = [empty(32 * MIB) for _ in range(14)]
        del small
        large = torch.ones(448 * MIB, dtype=torch.uint8, device="cuda")
        return {
            "value": large[-1].item(),
            "num_ooms": stat("num_ooms"),
            "retries": stat("num_alloc_retries"),
            "reserved": torch.cuda.memory_reserved(),
        }


@behaviour()
def halving_until_it_fits_finds_the_same_size() -> Observed:
    tried: list[list[Any]] = []
    with room_for(GIB + 64 * MIB):
        size = 16 * GIB
        while True:
            try:
                tensor = empty(size)
            except torch.OutOfMemoryError:
                tried.append([size, "failed"])
                size //= 2
            else:
                tried.append([size, "fits"])
                break
        del tensor
    return {"tried": tried, "num_ooms": stat("num_ooms")}


class _Greedy(torch.autograd.Function):  # type: ignore[misc]
    """A function whose backward pass requests far more memory than there is."""

    @staticmethod
    def forward(_context: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(_context: Any, *gradients: Any) -> Any:
        empty(1 << 42)
        return gradients[0]


@behaviour()
def running_out_in_a_backward_pass_is_told_to_the_caller() -> Observed:
    x = torch.ones(MIB, device="cuda", requires_grad=True)
    out = _Greedy.apply(x * 3)
    error = error_of(lambda: out.sum().backward())
    (x * 3).sum().backward()
    gradient = x.grad
    return {
        "error": [error[0], error[1].partition(" of which ")[0]],
        "gradient": gradient.sum().item(),
        "num_ooms": stat("num_ooms"),
    }


@behaviour(own_process=True)
def observers_are_told() -> Observed:
    told: list[dict[str, Any]] = []

    def observe(device: int, size: int, allowed: int, free: int) -> None:
        snapshot = torch.cuda.memory._snapshot()
        told.append(
            {
                "device": device,
                "size": size,
                "allowed": allowed,
                "sensible_free": 0 <= free <= torch.cuda.mem_get_info()[1],
                "blocks": sum(
                    block["state"] == "active_allocated"
                    for segment in snapshot["segments"]
                    for block in segment["blocks"]
                ),
                "allocated": torch.cuda.memory_allocated(),
            }
        )

    torch._C._cuda_attach_out_of_memory_observer(observe)
    kept = empty(12 * MIB)
    first = error_of(lambda: empty(1 << 42))[0]
    second = error_of(lambda: empty(1 << 43))[0]
    with room_for(64 * MIB):
        third = error_of(lambda: empty(128 * MIB))[0]
    seen: Observed = {"errors": [first, second, third], "told": told}
    for call in told[-1:]:
        seen["last_allowed"] = call.pop("allowed") > 0
    del kept
    return seen


@behaviour()
def a_garbage_collected_tensor_is_no_memory() -> Observed:
    class Holder:
        def __init__(self) -> None:
            self.tensor = empty(64 * MIB)
            self.me = self

    before = torch.cuda.memory_allocated()
    Holder()
    gc.collect()
    return {"change": torch.cuda.memory_allocated() - before}
