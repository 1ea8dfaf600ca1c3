"""Reports, when a process ends, how it used each GPU.

The environment variable PLIMSOLL_REPORT asks for this report. `plimsoll run` sets the variable.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import asdict, dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plimsoll.base.json_text import json_line
from plimsoll.base.telemetry.job import rank_of_process
from plimsoll.base.telemetry.torch_counters import torch_pinned_bytes
from plimsoll.base.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from plimsoll.base.telemetry.peak_resets import TorchPeaks

FIRST_PROCESS = "PLIMSOLL_FIRST_PROCESS"
"""The environment variable with the process id of the script that `plimsoll run` runs."""


@dataclass(frozen=True)
class ExitSummary:
    """The use of one GPU by one process; None means unknown.

    Attributes:
        allocator: "torch" for PyTorch's own allocator; "elastic", "native" or "uncached" for one of
            plimsoll's.
        rank: The rank of the process, if a launcher set one.
        process: The process id.
        device: PyTorch's number of the GPU.
        peak_allocated_bytes: The most bytes that live blocks held at any time.
        peak_reserved_bytes: The most bytes reserved from the driver, on the card and in shared
            memory.
        peak_shared_bytes: The most bytes reserved in shared memory, which is host memory that the
            GPU uses. It holds blocks that did not fit on the card, or that the program placed in
            host memory.
        card_peak_bytes: The most memory of the card in use by all processes together.
        card_processes: How many of the program's processes used the card so far.
        peak_pinned_bytes: The most page-locked memory that PyTorch's host allocator held, for all
            GPUs of the process.
        pinned_is_shared: Whether page-locked memory counts as shared memory, as in Windows.
        torch_peak_reserved_bytes: The most that PyTorch's own allocator would have reserved. If
            PyTorch's allocator would have run out of memory, the most until then.
        torch_num_ooms: How often PyTorch's own allocator would have run out of memory.
        plan: A line that says how far the allocator followed its plan, or why it dropped the plan;
            None without a plan.
        made_up_reads: How many places of the script read values that plimsoll made up, as far as
            this process ran them. Always 0 on a real GPU.
        first_made_up_read: The first of these places, as "train.py:9 log"; None if there is none.
    """

    allocator: str
    rank: int | None
    process: int
    device: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_shared_bytes: int = 0
    card_peak_bytes: int | None = None
    card_processes: int | None = None
    peak_pinned_bytes: int | None = None
    pinned_is_shared: bool = False
    torch_peak_reserved_bytes: int | None = None
    torch_num_ooms: int | None = None
    plan: str | None = None
    made_up_reads: int = 0
    first_made_up_read: str | None = None

    def line(self) -> str:
        """Returns the summary as the line that people read."""
        where = named_process(self.rank)
        allocator = "PyTorch's" if self.allocator == "torch" else f"the {self.allocator}"
        text = (
            f"{where}GPU {self.device}, {allocator} allocator: "
            f"peak allocated {format_size(self.peak_allocated_bytes)}, "
            f"reserved {format_size(self.peak_reserved_bytes)}"
        )
        if self.peak_shared_bytes:
            text += f", in shared memory {format_size(self.peak_shared_bytes)}"
        if self.card_peak_bytes is not None:
            text += f", in use on the card {format_size(self.card_peak_bytes)}"
            if (self.card_processes or 1) > 1:
                text += f" (by {self.card_processes} processes)"
        if self.peak_pinned_bytes:
            text += f"; page-locked host memory {format_size(self.peak_pinned_bytes)}"
            text += ", which counts as shared memory too" if self.pinned_is_shared else ""
        text += self._with_torch()
        return text if self.plan is None else f"{text}; {self.plan}"

    def _with_torch(self) -> str:
        if self.torch_peak_reserved_bytes is None:
            return ""
        reserved = format_size(self.torch_peak_reserved_bytes)
        if not self.torch_num_ooms:
            return f"; PyTorch's allocator would have reserved {reserved}"
        if not self.torch_peak_reserved_bytes:
            return "; with PyTorch's allocator the first request would have failed"
        return f"; PyTorch's allocator would have run out of memory, with {reserved} reserved"


def named_process(rank: int | None) -> str:
    """Returns the beginning of a line about this process: its rank, or its process id.

    Returns "" for the process that runs the script itself, unless it has a rank.
    """
    if rank is not None:
        return f"rank {rank}, "
    first = os.environ.get(FIRST_PROCESS, str(os.getpid()))
    is_first = first == str(os.getpid()) and multiprocessing.parent_process() is None
    return "" if is_first else f"process {os.getpid()}, "


def report_at_exit(
    read: Callable[[], Iterable[ExitSummary]],
    to: str,
    notes: Callable[[], Iterable[str]] = tuple,
) -> None:
    """Makes this process, even a `multiprocessing` child, write its summaries when it ends.

    Args:
        read: Returns the summaries.
        to: "1" prints each summary as a line of text on stderr. Any other value is the path of a
            file, to which each summary is appended as a line of JSON.
        notes: Returns lines to print on stderr after the summaries, whatever `to` is.
    """
    Finalize(None, _write, (read, to, notes), exitpriority=0)


def make_summary(allocator: str, device: int, figures: dict[str, Any]) -> ExitSummary:
    """Makes the summary of this process's use of one GPU.

    Args:
        allocator: The allocator's name, as in `ExitSummary`.
        device: PyTorch's number of the GPU.
        figures: The allocator's final counters by name, such as "peak_allocated_bytes".
    """
    is_torch_known = figures.get("torch_stopped") is None
    return ExitSummary(
        allocator=allocator,
        rank=rank_of_process(),
        process=os.getpid(),
        device=device,
        peak_allocated_bytes=figures["peak_allocated_bytes"],
        peak_reserved_bytes=figures["peak_reserved_bytes"],
        peak_shared_bytes=figures.get("peak_shared_reserved_bytes", 0),
        card_peak_bytes=figures.get("card_peak_bytes"),
        card_processes=figures.get("card_processes"),
        peak_pinned_bytes=figures.get("peak_pinned_bytes"),
        pinned_is_shared=figures.get("pinned_is_shared", False),
        torch_peak_reserved_bytes=figures.get("torch_peak_reserved_bytes")
        if is_torch_known
        else None,
        torch_num_ooms=figures.get("torch_num_ooms") if is_torch_known else None,
    )


def torch_summaries(peaks: TorchPeaks) -> list[ExitSummary]:
    """Returns the summaries of PyTorch's own allocator in this process."""
    import torch

    backend = torch.cuda.memory.get_allocator_backend()
    if not torch.cuda.is_initialized() or backend not in ("native", "cudaMallocAsync"):
        return []  # the program used no GPU memory, or another allocator served it
    pinned_bytes = torch_pinned_bytes("peak")
    summaries = []
    for device in range(torch.cuda.device_count()):
        allocated, reserved = peaks.of(device)
        figures = {
            "peak_allocated_bytes": allocated,
            "peak_reserved_bytes": reserved,
            "peak_pinned_bytes": pinned_bytes,
        }
        summaries.append(make_summary("torch", device, figures))
    return of_used_gpus(summaries)


def of_used_gpus(summaries: Sequence[ExitSummary]) -> list[ExitSummary]:
    """Leaves out the GPUs on which the process reserved no memory.

    Keeps the first GPU if the process reserved memory on none, but has page-locked host memory,
    which belongs to all GPUs of the process.
    """
    used = [summary for summary in summaries if summary.peak_reserved_bytes]
    has_pinned = any(summary.peak_pinned_bytes for summary in summaries)
    return used or list(summaries[:1] if has_pinned else [])


def _write(
    read: Callable[[], Iterable[ExitSummary]], to: str, notes: Callable[[], Iterable[str]]
) -> None:
    summaries = list(read())
    if to == "1":
        for summary in summaries:
            print(f"plimsoll: {summary.line()}", file=sys.stderr)
    else:
        _append(summaries, to)
    for note in notes():
        print(f"plimsoll: {note}", file=sys.stderr)


def _append(summaries: Iterable[ExitSummary], to: str) -> None:
    try:
        with Path(to).open("a") as file:  # several processes may end, and append, at the same time
            for summary in summaries:
                file.write(json_line(asdict(summary)) + "\n")
    except OSError as error:
        print(f"plimsoll: no summary in {to}: {error.strerror}", file=sys.stderr)
