"""Tests when copies run, on which streams, and for which copies the host waits."""

from __future__ import annotations

import torch

from tests.simulated import on_simulated_gpus


def _elapsed(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    return float(start.elapsed_time(end))


@on_simulated_gpus("--gpus", "2")
def test_a_copy_to_another_card_takes_time_on_the_streams_of_both() -> None:
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:0")
    y = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:1")
    for device in (0, 1):
        with torch.cuda.device(device):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            y.copy_(x)
            end.record()
        assert _elapsed(start, end) > 1, device  # in ms; a copy of 1 GiB over NVLink takes longer


@on_simulated_gpus("--gpus", "2")
def test_a_copy_to_another_card_waits_for_both_streams() -> None:
    x, y = (torch.empty(8, device=f"cuda:{device}") for device in (0, 1))
    for busy, other in ((0, 1), (1, 0)):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(other):
            start.record()
        with torch.cuda.device(busy):
            torch.cuda._sleep(100_000_000)
        y.copy_(x)
        with torch.cuda.device(other):
            end.record()
        assert _elapsed(start, end) > 50, busy


@on_simulated_gpus("--gpus", "2")
def test_a_stream_waits_for_an_event_of_another_card() -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(0):
        torch.cuda._sleep(100_000_000)
        done = torch.cuda.Event()
        done.record()
    with torch.cuda.device(1):
        start.record()
        done.wait()
        end.record()
    assert _elapsed(start, end) > 50


@on_simulated_gpus()
def test_the_host_waits_until_ordinary_memory_is_staged() -> None:
    def is_done_at_once(count: int, pinned: bool) -> bool:
        host = torch.empty(count, dtype=torch.uint8, pin_memory=pinned)
        there = torch.empty(count, dtype=torch.uint8, device="cuda")
        torch.cuda._sleep(100_000_000)
        there.copy_(host, non_blocking=True)
        return bool(torch.cuda.current_stream().query())

    assert is_done_at_once(1 << 24, pinned=False)
    assert not is_done_at_once(1 << 24, pinned=True)
    assert not is_done_at_once(1 << 16, pinned=False)
