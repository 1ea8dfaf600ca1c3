"""The host memory of a program. It is an estimate, unlike the memory of a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class HostCost:
    """The host memory of a part of Python, PyTorch or CUDA.

    Attributes:
        own_bytes: The memory of each process.
        file_bytes: The mapped files, which all processes of a machine share.
    """

    own_bytes: int
    file_bytes: int


# PYTHON is the memory of Python itself. TORCH is added by the import of PyTorch, CONTEXT by a CUDA
# context with a program's kernels, FURTHER_CONTEXT by each further context, CUBLAS and CUDNN by the
# first use of these libraries. `benchmarks/host_memory.py parts` measured all figures except
# FURTHER_CONTEXT, on an H200 with PyTorch 2.11.
# CONTEXT and CUBLAS are medians, because CUDA loads a kernel only when the program first calls it.
# For example, a program that multiplies matrices of several data types loads more of cuBLAS.
PYTHON = HostCost(10 * MiB, 7 * MiB)
TORCH = HostCost(267 * MiB, 208 * MiB)
CONTEXT = HostCost(150 * MiB, 90 * MiB)
FURTHER_CONTEXT = HostCost(60 * MiB, 0)
CUBLAS = HostCost(150 * MiB, 15 * MiB)
CUDNN = HostCost(68 * MiB, 60 * MiB)
_COSTS_VARY = 0.25
"""These figures may differ between machines by up to this share."""


@dataclass(frozen=True)
class HostUse:
    """The host memory of a process and of the processes forked from it.

    Attributes:
        host: The number of its machine.
        peak_bytes: The most memory that the program itself has at one time.
        least_bytes: A lower bound of `peak_bytes`: the largest sum of figures that were read at the
            same moment. `peak_bytes` adds maxima that may have come at different moments.
        own_bytes: The memory of Python, PyTorch and CUDA in this process.
        file_bytes: The size of the files that Python, PyTorch and CUDA map.
    """

    host: int
    peak_bytes: int
    least_bytes: int
    own_bytes: int
    file_bytes: int


def host_peak(uses: Iterable[HostUse]) -> tuple[int, tuple[int, int]] | None:
    """Returns the peak host memory of the machine with the highest peak, and that peak's range.

    It assumes that all processes reach their peaks at the same time. It counts mapped files
    only once. Returns None if `uses` is empty.
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
