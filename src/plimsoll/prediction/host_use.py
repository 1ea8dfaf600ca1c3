"""What a program takes of the host's memory: an estimate, since only a device's bytes are exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class HostCost:
    """What a part of Python, PyTorch or CUDA takes of the host's memory.

    Attributes:
        own_bytes: Of each process.
        file_bytes: Of files that are mapped, which all processes of a machine share.
    """

    own_bytes: int
    file_bytes: int


# Python itself, and what it takes besides when PyTorch is imported, CUDA has a context and a
# program's kernels, and its libraries are used first: on an H200 with PyTorch 2.11, as
# `benchmarks/host_memory.py parts` prints it. Kernels are loaded when they are called first, and
# the more kinds of numbers a program multiplies the more of cuBLAS: these two are the middle of
# what was seen. A further context was not measured.
PYTHON = HostCost(10 * MiB, 7 * MiB)
TORCH = HostCost(267 * MiB, 208 * MiB)
CONTEXT = HostCost(150 * MiB, 90 * MiB)
FURTHER_CONTEXT = HostCost(60 * MiB, 0)
CUBLAS = HostCost(150 * MiB, 15 * MiB)
CUDNN = HostCost(68 * MiB, 60 * MiB)
_COSTS_VARY = 0.25
"""By how much these may differ from one machine to another, as a part of them."""


@dataclass(frozen=True)
class HostUse:
    """What a process takes, with those that are forked from it.

    Attributes:
        host: The number of its machine.
        peak_bytes: The most that the program itself takes at once.
        least_bytes: What of it was seen at one moment.
        own_bytes: What Python, PyTorch and CUDA take besides, of this process.
        file_bytes: And of files that they map.
    """

    host: int
    peak_bytes: int
    least_bytes: int
    own_bytes: int
    file_bytes: int


def host_peak(uses: Iterable[HostUse]) -> tuple[int, tuple[int, int]] | None:
    """What the processes of the machine that they fill most take, with a range; None for none.

    Each is taken to be at its peak at the same time. Files that are mapped are shared.
    """
    by_host: dict[int, list[HostUse]] = {}
    for use in uses:
        by_host.setdefault(use.host, []).append(use)
    return max(map(_on_one_machine, by_host.values()), default=None)


def _on_one_machine(uses: list[HostUse]) -> tuple[int, tuple[int, int]]:
    costs = sum(use.own_bytes for use in uses) + max(use.file_bytes for use in uses)
    varies = int(costs * _COSTS_VARY)
    peak = sum(use.peak_bytes for use in uses)
    least = max(use.least_bytes for use in uses) if len(uses) > 1 else uses[0].least_bytes
    return costs + peak, (costs - varies + least, costs + varies + peak)
