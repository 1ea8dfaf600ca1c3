"""The peaks of PyTorch's own allocator over a whole run, even if the program resets them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# `torch.cuda` calls the first function, `torch.accelerator` the second, which PyTorch 2.9 added.
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


def before_each_peak_reset(torch: ModuleType, keep: Callable[[int], None]) -> None:
    """Makes PyTorch call `keep` with the number of the GPU before it resets that GPU's peaks."""

    def keep_first(reset: Callable[[int], None]) -> Callable[[int], None]:
        def keep_and_reset(device: int) -> None:
            keep(device)
            reset(device)

        return keep_and_reset

    for name in _RESETS:
        if (reset := getattr(torch._C, name, None)) is not None:
            setattr(torch._C, name, keep_first(reset))


class TorchPeaks:
    """Remembers the peaks of PyTorch's own allocator when the program resets them."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._before_resets: dict[int, tuple[int, int]] = {}
        before_each_peak_reset(torch, self._keep)

    def _keep(self, device: int) -> None:
        with contextlib.suppress(Exception):
            self._before_resets[device] = self.of(device)

    def of(self, device: int) -> tuple[int, int]:
        """Returns the most allocated bytes and the most reserved bytes of a GPU so far."""
        allocated, reserved = self._before_resets.get(device, (0, 0))
        statistics = self._torch.cuda.memory_stats(device)
        return (
            max(allocated, statistics.get("allocated_bytes.all.peak", 0)),
            max(reserved, statistics.get("reserved_bytes.all.peak", 0)),
        )
