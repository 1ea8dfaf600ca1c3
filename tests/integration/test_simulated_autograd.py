"""Tests that memory held by a backward pass is free when the pass returns."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from plimsoll.torch.simulated.start import running
from tests.simulated import on_simulated_gpus

torch = pytest.importorskip("torch")

_PASSES = 5


def _let_engine_come_last() -> None:
    """Makes autograd's threads run only while the main thread waits.

    All threads share one CPU core, and the main thread has priority. When an autograd thread wakes
    the main thread, the main thread runs first. The autograd thread finishes its own work later.
    """
    torch.zeros(1, device="cuda", requires_grad=True).sum().backward()
    processor = {min(os.sched_getaffinity(0))}
    for task in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(task.name), processor)
        if (task / "comm").read_text().startswith("pt_autograd"):
            os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))


def _held() -> list[int]:
    return [torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count())]


@pytest.mark.long
@on_simulated_gpus()
def test_a_gradient_is_freed_where_the_program_drops_it() -> None:
    _let_engine_come_last()
    x = torch.randn(256, 256, device="cuda")
    before = _held()
    for _ in range(_PASSES):
        part = x.detach().requires_grad_()
        gradients = torch.autograd.grad((part * 2).sum(), part)
        assert _held() == [before[0] + x.nbytes]
        del gradients
        assert _held() == before


@pytest.mark.long
@on_simulated_gpus("--gpus", "2")
def test_gradients_on_several_devices_are_freed_too() -> None:
    _let_engine_come_last()
    x, y = (torch.randn(256, 256, device=f"cuda:{i}") for i in range(2))
    before = _held()
    for _ in range(_PASSES):
        a, b = x.detach().requires_grad_(), y.detach().requires_grad_()
        torch.autograd.grad((a.to("cuda:1") * b).sin().to("cuda:0").sum(), (a, b))
        assert _held() == before


class _Fails(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """A function whose backward pass raises an error while another gradient is pending."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:  # noqa: ARG004
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ARG004
        raise KeyError("a gradient")


@on_simulated_gpus()
def test_a_pass_that_fails_raises_its_error_and_holds_nothing() -> None:
    _let_engine_come_last()
    x = torch.randn(256, 256, device="cuda")
    before = _held()
    for _ in range(_PASSES):
        y = x.detach().requires_grad_().exp()
        failing = _Fails.apply(y)
        loss = (failing + y * 3).sum()
        with pytest.raises(KeyError, match="a gradient") as error:
            loss.backward()
        del y, failing, loss, error
        assert _held() == before


class _Nested(torch.autograd.Function):  # type: ignore[misc, name-defined]
    """A function whose backward pass runs another backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(x.sin(), x, gradients[0])[0]


@pytest.mark.long
@on_simulated_gpus("--gpus", "2")
def test_passes_inside_passes_and_of_several_threads_end() -> None:
    from torch.utils.checkpoint import checkpoint

    def deep(depth: int, x: Any) -> Any:
        if depth == 0:
            return _Nested.apply(x)
        return checkpoint(deep, depth - 1, x, use_reentrant=True)

    def passes(device: str) -> None:
        for depth in (0, 1, 70):  # autograd runs passes nested deeper than 60 in other threads
            x = torch.ones(8, device=device, requires_grad=True)
            deep(depth, x).sum().backward()
            ended.append(x.grad.sum().item())

    ended: list[float] = []
    devices = ("cuda:0", "cuda:1", "cuda:0", "cpu")
    threads = [threading.Thread(target=passes, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended == pytest.approx([8 * 0.5403023] * 3 * len(devices))


@on_simulated_gpus()
def test_waiting_for_the_engine_is_seen_nowhere() -> None:
    simulation = running()
    assert simulation

    def seen() -> list[Any]:
        clock = simulation.library.clock(0)
        return [
            [getattr(clock, name) for name, *_ in clock._fields_],
            simulation.machine.gpus[0].driver_seconds,
            simulation.allocators[0].engine.history_size,
            torch.cuda.memory_stats(),
            torch.cuda.get_rng_state().tolist(),
            torch.cuda.current_stream(),
        ]

    def number() -> int:
        return int((x * 2).grad_fn._sequence_nr())

    torch.cuda.memory._record_memory_history()
    x = torch.zeros(64, 64, device="cuda", requires_grad=True)
    (x * 2).sum().backward()
    wait = simulation.library.lib.plimsoll_fence_autograd
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                first, before = number(), seen()
                wait()
                assert seen() == before
                assert number() == first + 1
    assert not [event.key for event in profile.key_averages() if "autograd" in event.key]
