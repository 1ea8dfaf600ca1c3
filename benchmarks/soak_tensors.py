"""Makes and checks random tensors with known contents, for the threads of benchmarks/soak.py."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.units import MiB
from plimsoll.torch.simulated.start import running

if TYPE_CHECKING:
    import torch


@dataclass
class Tensor:
    """A tensor with the number that fills it."""

    data: torch.Tensor
    value: int


class Tensors:
    """Random tensors of one thread on one stream."""

    def __init__(self, seed: int, budget: int) -> None:
        import torch

        self.random = random.Random(seed)
        self.budget = budget
        self.stream = torch.cuda.Stream()
        self.other = torch.cuda.Stream()
        self.live: list[Tensor] = []
        self.counts = {"tensors": 0, "uses by other streams": 0, "out of memory": 0}
        self.has_values = running() is None

    def act(self) -> None:
        """Frees tensors until a new one fits the budget, and allocates the new one.

        Afterwards sometimes frees another tensor.
        """
        import torch

        with torch.cuda.stream(self.stream):
            size = self.size()
            while self.live and sum(t.data.nbytes for t in self.live) + size > self.budget:
                self.drop()
            try:
                self.live.append(self.take(size))
            except torch.OutOfMemoryError:
                self.counts["out of memory"] += 1
            if self.live and self.random.random() < 0.4:
                self.drop()

    def size(self) -> int:
        """Returns a random size of at most 256 MiB and at most a quarter of the budget.

        Small sizes are as frequent as large ones: the logarithm is uniform.
        """
        most = min(256 * MiB, self.budget // 4)
        return int(min(most, 2 ** self.random.uniform(0, most.bit_length())))

    def take(self, size: int) -> Tensor:
        """Returns a tensor filled with one number."""
        import torch

        data = torch.empty(size, dtype=torch.uint8, device="cuda")
        value = self.random.randrange(256)
        data.fill_(value)
        self.counts["tensors"] += 1
        return Tensor(data, value)

    def drop(self) -> None:
        """Frees a random tensor. Sometimes first checks it, or uses it on another stream."""
        import torch

        tensor = self.live.pop(self.random.randrange(len(self.live)))
        if self.random.random() < 0.2:
            self.other.wait_stream(self.stream)
            with torch.cuda.stream(self.other):
                tensor.data.add_(1)
            tensor.data.record_stream(self.other)
            self.counts["uses by other streams"] += 1
        elif self.random.random() < 0.2:
            self.check(tensor)

    def check(self, tensor: Tensor) -> None:
        """Checks that the tensor still holds its number."""
        import torch

        if not self.has_values:
            return
        try:
            is_whole = bool((tensor.data == tensor.value).all())
        except torch.OutOfMemoryError:  # comparing allocates memory
            self.counts["out of memory"] += 1
            return
        require(is_whole, "a tensor holds something else")


def require(holds: bool, what: str) -> None:
    """Ends the program with a one-line message if a check fails."""
    if not holds:
        sys.exit(f"soak: {what}")
