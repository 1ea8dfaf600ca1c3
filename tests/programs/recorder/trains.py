"""Trains four layers while plimsoll records the memory of this program.

    python trains.py NAME

NAME is the function to run.
"""

import subprocess
import sys
from pathlib import Path

import torch

import plimsoll
from plimsoll.engine.recorder import parts

model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def train(steps: int) -> None:
    """Trains `steps` steps."""
    for _ in range(steps):
        model(torch.randn(64, 256, device="cuda")).square().mean().backward()  # forward, backward
        optimizer.step()  # the optimizer
        optimizer.zero_grad()


def three_steps() -> None:
    """Trains three steps."""
    train(3)


def and_print_the_statistics() -> None:
    """Trains, and prints the allocator's counters."""
    train(3)
    print(torch.cuda.memory_stats())


def until_memory_is_out() -> None:
    """Requests more memory than the card has."""
    train(1)
    torch.empty(100 << 30, dtype=torch.uint8, device="cuda")


def and_record_a_part() -> None:
    """Trains six steps. Records the middle two steps and a marked evaluation in `part.plim`."""
    train(2)
    with plimsoll.record("part.plim") as recording:
        train(2)
        recording.mark("evaluation")
        model(torch.randn(64, 256, device="cuda"))
    train(2)


def beside_pytorchs_own_history() -> None:
    """Trains one step with PyTorch's own memory history on, and one step with it off."""
    torch.cuda.memory._record_memory_history()
    train(1)
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    torch.cuda.memory._record_memory_history(enabled=None)
    train(1)


def and_keep_the_newest_events() -> None:
    """Trains until the recording has two files. Its limit is less than `record` usually accepts."""
    parts._LEAST_LIMIT = 1
    with plimsoll.record("part.plim", limit=400_000):
        while not Path("part.earlier.plim").exists():
            train(10)
        train(10)


def until_killed() -> None:
    """Trains until it is killed."""
    print("training", flush=True)
    train(1_000_000)


def in_a_process_of_its_own() -> None:
    """Runs this script again, in a new process that has its own simulated GPU."""
    command = [sys.executable, "-m", "plimsoll", "run", "--simulate", "H100", __file__]
    sys.exit(subprocess.call([*command, "three_steps"]))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
