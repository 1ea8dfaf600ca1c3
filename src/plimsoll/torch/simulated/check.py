"""Tests whether simulated GPUs work with the installed PyTorch.

    python -m plimsoll.torch.simulated.check LIBRARY

LIBRARY is the file of the simulated GPUs' C++ library. `building/compiler.py` runs this program
when it has built that library for a PyTorch with which plimsoll was not tested. If the test fails,
the last line on stderr names the failure.
"""

from __future__ import annotations

import ctypes
import sys

from plimsoll.torch.simulated.setup import Setup
from plimsoll.torch.simulated.simulation import Simulation
from plimsoll.torch.simulated.start import start


def main() -> None:
    """Trains a small model for two steps, and checks the memory."""
    start(Simulation(Setup(("H100",)), ctypes.CDLL(sys.argv[1])))
    step = "import torch"
    try:
        import torch

        step = "moving a module to the GPU"
        model = torch.nn.Sequential(
            torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 8)
        ).cuda()
        step = "making an optimizer"
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            step = "the forward pass"
            loss = model(torch.randn(64, 256, device="cuda")).square().mean()
            step = "the backward pass"
            loss.backward()
            step = "the optimizer's step"
            optimizer.step()
            optimizer.zero_grad()
        step = "the memory's statistics"
        at_least = 3 * sum(parameter.nbytes for parameter in model.parameters())
        if torch.cuda.memory_allocated() < at_least or not torch.cuda.memory_summary():
            raise RuntimeError("memory is not accounted for")
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        print(f"{step} fails with {type(error).__name__}: {first}", file=sys.stderr, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
