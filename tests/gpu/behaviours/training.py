"""Behaviours of programs that train, and of the profiler."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tests.gpu.behaviours.behaviour import Observed, at_most, behaviour
from tests.gpu.behaviours.tools import MIB, empty, stat


def make_model() -> Any:
    """Returns a small model, always with the same weights."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(256, 1024),
        torch.nn.GELU(),
        torch.nn.LayerNorm(1024),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(1024, 1024),
        torch.nn.GELU(),
        torch.nn.Linear(1024, 64),
    ).cuda()


def bits(values: list[float]) -> list[str]:
    """Returns numbers as hexadecimal text, exact to the last bit."""
    return [value.hex() for value in values]


@behaviour(elastic={"peak_allocated": at_most, "peak_reserved": at_most})
def mixed_precision_trains_to_the_same_bits() -> Observed:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    losses, scales = [], []
    for step in range(12):
        torch.manual_seed(step)
        batch = torch.randn(64 + 8 * (step % 5), 256, device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses += [loss.item(), norm.item()]
        scales.append(scaler.get_scale())
    return {
        "losses": bits(losses),
        "scales": scales,
        "requests": stat("allocation.all.allocated"),
        "peak_requested": stat("requested_bytes.all.peak"),
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
    }


@behaviour(elastic={"peak_reserved": at_most, "peak_allocated": at_most})
def convolutions_train_to_the_same_bits() -> Observed:
    # cuDNN chooses its algorithms by the free memory that the allocator reports. If it chose
    # different algorithms under two allocators, the losses could differ in their last bits.
    torch.manual_seed(0)
    torch.backends.cudnn.deterministic = True
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding=1),
        torch.nn.AdaptiveAvgPool2d(1),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(6):
        torch.manual_seed(step)
        loss = model(torch.randn(16, 3, 64, 64, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.backends.cudnn.deterministic = False
    return {
        "losses": bits(losses),
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
    }


@behaviour()
def cudnn_benchmarks_leave_nothing_behind() -> Observed:
    torch.backends.cudnn.benchmark = True
    convolution = torch.nn.Conv2d(16, 16, 3).cuda()
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        out = convolution(torch.ones(8, 16, 40, 40, device="cuda"))
    shape = list(out.shape)
    del out
    torch.backends.cudnn.benchmark = False
    return {"shape": shape, "left": torch.cuda.memory_allocated() - before}


@behaviour()
def backward_passes_free_what_they_saved() -> Observed:
    model = make_model()
    batch = torch.randn(64, 256, device="cuda")
    model(batch).sum().backward()  # makes gradients and workspaces, which stay allocated
    model.zero_grad(set_to_none=False)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    out = model(batch)
    saved = torch.cuda.memory_allocated() - before
    out.sum().backward()
    del out
    return {"saved": saved > 0, "left": torch.cuda.memory_allocated() - before}


@behaviour()
def checkpoints_compute_the_same_gradients() -> Observed:
    norms = []
    for is_checkpointed in (False, True):
        model = make_model()
        torch.manual_seed(5)
        batch = torch.randn(64, 256, device="cuda", requires_grad=True)
        out = checkpoint(model, batch, use_reentrant=False) if is_checkpointed else model(batch)
        out.square().sum().backward()
        norms += [batch.grad.norm().item(), model[0].weight.grad.norm().item()]
        del model, batch, out
    return {"norms": bits(norms)}


@behaviour()
def saved_tensors_wait_on_the_host() -> Observed:
    model = make_model()
    torch.manual_seed(5)
    batch = torch.randn(64, 256, device="cuda")
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        loss = model(batch).square().sum()
    loss.backward()
    return {"norm": bits([model[0].weight.grad.norm().item(), loss.item()])}


@behaviour(elastic={"reserved": at_most})
def the_profiler_sees_requests() -> Observed:
    empty(1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        first = empty(24 * MIB)
        second = empty(12 * MIB)
        del first
        third = torch.zeros(16 * MIB, dtype=torch.uint8, device="cuda")
        del second, third
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())["traceEvents"]
    events = [
        event["args"]
        for event in trace
        if event.get("name") == "[memory]" and event["args"].get("Device Type") == 1
    ]
    averages = profile.key_averages()
    return {
        "bytes": [event["Bytes"] for event in events],
        "allocated": [event["Total Allocated"] for event in events],
        "reserved": [event["Total Reserved"] for event in events],
        "keys": sorted({key for event in events for key in event}),
        "by_operation": sorted(
            [average.key, average.device_memory_usage]
            for average in averages
            if average.device_memory_usage
        ),
    }


@behaviour()
def the_profiler_sees_failures() -> Observed:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        try:
            empty(1 << 42)
        except torch.OutOfMemoryError:
            is_raised = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    return {"raised": is_raised, "named": sorted(names & {"[OutOfMemory]"})}


@behaviour()
def random_numbers_are_the_same() -> Observed:
    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state()
    first = torch.randn(1000, device="cuda")
    torch.cuda.set_rng_state(state)
    second = torch.randn(1000, device="cuda")
    return {"equal": torch.equal(first, second), "sum": bits([first.double().sum().item()])}
