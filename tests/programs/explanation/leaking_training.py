"""Trains on a simulated T4 under a LeakWatch; every step keeps 16 KiB more.

    python leaking_training.py HOW

HOW is the function to run.
"""

import sys
import tempfile
from pathlib import Path

from plimsoll.torch.simulated.setup import Setup
from plimsoll.torch.simulated.simulation import Simulation
from plimsoll.torch.simulated.start import start

start(Simulation(Setup(("T4",))))

import torch  # noqa: E402

from plimsoll.explanation.leak_watch import LeakWatch  # noqa: E402

model = torch.nn.Linear(64, 64).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
kept: list[torch.Tensor] = []


def train() -> None:
    """Trains one step."""
    model(torch.randn(8, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.ones(4096, device="cuda"))


def to_the_end_of_the_watch() -> None:
    """Prints, at steps 18, 31 and 32, how many leaks the watch found and how many files exist."""
    tempfile.tempdir = "."
    with LeakWatch(steps=32) as watch:
        for number in range(1, 41):
            train()
            if number in (18, 31, 32):
                print(number, len(watch.leaks), len(list(Path().glob("plimsoll-*"))))


def with_steps_that_are_told() -> None:
    """Prints the number of the step at which the watch ends.

    The program calls `watch.step` after every two optimizer steps.
    """
    with LeakWatch(steps=20) as watch:
        for number in range(1, 25):
            train()
            train()
            watch.step()
            if "not watching" in str(watch):
                print(number)
                break


def of_sums_and_lists() -> None:
    """Sums up losses with their graphs, and keeps results without a graph."""
    total = torch.zeros((), device="cuda")
    with LeakWatch() as watch:
        for _ in range(30):
            total = total + model(torch.randn(512, 64, device="cuda")).mean()
            with torch.no_grad():
                kept.append(torch.zeros(4096, device="cuda"))
            watch.step()


def of_the_whole_loop() -> None:
    """Prints the leak that the watch found in the whole loop."""
    with LeakWatch() as watch:
        for _ in range(30):
            train()
    (leak,) = watch.leaks
    print(leak.what, leak.slope_bytes)


ways = (
    *(to_the_end_of_the_watch, with_steps_that_are_told),
    *(of_sums_and_lists, of_the_whole_loop),
)
{way.__name__: way for way in ways}[sys.argv[1]]()
