"""Trains eight layers, and records the training.

    python trains_on_a_gpu.py NAME

NAME is the function to run.
"""

import contextlib
import sys
import threading
from typing import Any

import torch

import plimsoll
from plimsoll.torch.session.record import record


def make() -> tuple[Any, Any]:
    """Returns a model and its optimizer."""
    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
    return model, torch.optim.AdamW(model.parameters())


def train(model: Any, optimizer: Any, steps: int) -> None:
    """Trains `steps` steps."""
    for _ in range(steps):
        model(torch.randn(256, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def five_steps() -> None:
    """Records five steps, and checks that no event is lost."""
    with record("run.plim") as recording:
        train(*make(), 5)
    assert recording.dropped == 0


def unrecorded_steps() -> None:
    """Trains; the test runs this function with `plimsoll run --record`."""
    train(*make(), 3)


def around_an_emptied_cache() -> None:
    """Trains two models, and empties the cache between them."""
    with record("run.plim"):
        train(*make(), 3)
        torch.cuda.empty_cache()
        train(*make(), 3)


def beside_pytorchs_own_history() -> None:
    """Records with plimsoll while PyTorch records its own history."""
    model, optimizer = make()
    torch.cuda.memory._record_memory_history(context=None)
    with record("run.plim", stacks=False):
        train(model, optimizer, 3)
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


def twice() -> None:
    """Records into one file, then into another."""
    model, optimizer = make()
    with record("first.plim"):
        train(model, optimizer, 2)
    train(model, optimizer, 2)
    with record("run.plim"):
        train(model, optimizer, 1)
    assert not torch._C._cuda_isHistoryEnabled()


def until_pytorch_records() -> None:
    """Starts PyTorch's own history during a recording."""
    model, optimizer = make()
    with record("run.plim"):
        train(model, optimizer, 1)
        torch.cuda.memory._record_memory_history()
        train(model, optimizer, 1)
    train(model, optimizer, 1)
    assert torch._C._cuda_isHistoryEnabled()
    torch.cuda.memory._dump_snapshot("snapshot.pickle")


def ask() -> None:
    """Requests more than any card has."""
    torch.empty(1 << 42, dtype=torch.uint8, device="cuda")


def out_of_memory() -> None:
    """Goes on after a failed request."""
    with record("run.plim"), contextlib.suppress(torch.OutOfMemoryError):
        ask()


def graphs() -> None:
    """Captures a graph, and replays it."""
    x = torch.randn(1024, 1024, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x @ x
    torch.cuda.synchronize()
    with record("run.plim"):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            _y = x @ x
        graph.replay()
        torch.cuda.synchronize()


def threads() -> None:
    """Trains four models at the same time, each in its own thread."""
    with record("run.plim"):
        started = [threading.Thread(target=lambda: train(*make(), 5)) for _ in range(4)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()


def spill() -> None:
    """Keeps 2 GiB; the test limits dedicated memory to 1 GiB, so some of it spills."""
    with record("run.plim"):
        _kept = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]


def refused() -> None:
    """Prints why recording is not possible."""
    try:
        record("run.plim").__enter__()
    except plimsoll.InputError as error:
        print(error)


def until_killed() -> None:
    """Trains until it is killed."""
    with record("run.plim"):
        train(*make(), 1_000_000)


globals()[sys.argv[1]]()
