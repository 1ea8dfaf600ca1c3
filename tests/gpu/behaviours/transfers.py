"""Behaviours of copies: pinned memory, data loaders, several GPUs."""

from __future__ import annotations

from typing import Any

import torch

from tests.gpu.behaviours.behaviour import Observed, UnavailableError, behaviour
from tests.gpu.behaviours.tools import MIB, SHORT_SLEEP_CYCLES


def numbers(count: int) -> Any:
    """Returns a tensor of `count` elements in host memory: 0, 1, 2 and so on."""
    return torch.arange(count, dtype=torch.float32)


@behaviour()
def copies_arrive_whole() -> Observed:
    right = []
    for count in (1, 1000, 3 * MIB + 1, 40 * MIB):
        source = numbers(count)
        there = source.cuda()
        again = torch.empty_like(there).copy_(there)
        right.append(torch.equal(again.cpu(), source))
    return {"right": right}


@behaviour()
def pinned_copies_need_no_waiting() -> Observed:
    right, are_pinned = [], []
    for i in range(6):
        source = (numbers(4 * MIB) + i).pin_memory()
        are_pinned.append(source.is_pinned())
        torch.cuda._sleep(SHORT_SLEEP_CYCLES // 10)
        there = source.to("cuda", non_blocking=True)
        del source  # the copy still reads it, so its memory must not be reused yet
        other = torch.full((4 * MIB,), -1.0).pin_memory()
        back = there.to("cpu", non_blocking=True)
        torch.cuda.synchronize()
        right.append(torch.equal(back, numbers(4 * MIB) + i) and bool((other == -1).all()))
    return {"pinned": are_pinned, "right": right}


@behaviour()
def copies_on_a_side_stream_overlap_safely() -> Observed:
    side = torch.cuda.Stream()
    right = []
    for i in range(10):
        source = torch.full((4 * MIB,), float(i), pin_memory=True)
        with torch.cuda.stream(side):
            there = source.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda._sleep(SHORT_SLEEP_CYCLES // 20)
        out = there * 2
        there.record_stream(torch.cuda.current_stream())
        del there
        with torch.cuda.stream(side):
            other = torch.full((4 * MIB,), -9.0, device="cuda")
        right.append(bool((out == 2.0 * i).all().item()))
        del other
    return {"right": right}


class _Squares(torch.utils.data.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.full((1000,), float(index * index))


@behaviour()
def data_loaders_pin_their_batches() -> Observed:
    seen: Observed = {}
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(
            _Squares(), batch_size=16, num_workers=workers, pin_memory=True
        )
        sums, are_pinned = [], []
        for batch in loader:
            are_pinned.append(batch.is_pinned())
            sums.append(batch.to("cuda", non_blocking=True).sum().item())
        seen[f"{workers} workers"] = [sums, are_pinned]
    return seen


@behaviour()
def two_gpus_exchange_tensors() -> Observed:
    if torch.cuda.device_count() < 2:
        raise UnavailableError("there is one GPU")
    before = [torch.cuda.memory_allocated(index) for index in range(2)]
    source = numbers(20 * MIB)
    first = source.to("cuda:0")
    second = first.to("cuda:1", non_blocking=True)
    back = second.to("cuda:0")
    with torch.cuda.device(1):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            third = first.to("cuda:1", non_blocking=True) * 2
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    inside = [torch.cuda.memory_allocated(index) - before[index] for index in range(2)]
    seen: Observed = {
        "peer_access": torch.cuda.can_device_access_peer(0, 1),
        "right": [torch.equal(tensor.cpu(), source) for tensor in (first, second, back, third / 2)],
        "inside": inside,
    }
    del first, second, back, third
    seen["after"] = [torch.cuda.memory_allocated(index) - before[index] for index in range(2)]
    return seen


@behaviour()
def a_tensor_is_freed_while_another_gpu_is_current() -> Observed:
    if torch.cuda.device_count() < 2:
        raise UnavailableError("there is one GPU")
    tensor = torch.ones(MIB, device="cuda:1")
    before = torch.cuda.memory_allocated(1)
    with torch.cuda.device(0):
        del tensor
    return {"change": torch.cuda.memory_allocated(1) - before}
