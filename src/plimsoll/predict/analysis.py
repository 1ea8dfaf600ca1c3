"""From the events of a simulated run to what was live at its peak, and for what.

Nothing here knows PyTorch: events are columns, sites say who asked, labels say what it became.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.predict.result import CATEGORIES, LineShare
from plimsoll.trace.events import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

ROLES = ("output", "temporary", "workspace", "input", "copy")
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Site:
    """Who asked for memory, or gave it back.

    Attributes:
        stack: Number of the Python call stack; 0 for none.
        role: One of `ROLES`.
        phase: One of `PHASES`.
        grad_enabled: Whether autograd was recording.
    """

    stack: int
    role: str
    phase: str
    grad_enabled: bool


@dataclass(frozen=True)
class Label:
    """What an address holds, said by somebody who knows, such as an optimizer.

    Attributes:
        event: How many events had happened then; the label is of the block that is live there.
        address: The block's address.
        category: One of `CATEGORIES`.
    """

    event: int
    address: int
    category: str


@dataclass(frozen=True)
class Run:
    """The events of one device, as columns of length n, and what is known of them.

    Attributes:
        action: Codes of `Action`.
        address: Addresses.
        size: Bytes asked for.
        shared: What of the block is in shared memory.
        site: Numbers of sites.
        sites: Sites by number.
        labels: What addresses hold.
        roles: By number of the allocation, roles that became clear later.
        round_request: What a request of that many bytes takes.
        steps: At which events a step of the program ended.
    """

    action: NDArray[np.uint8]
    address: NDArray[np.uint64]
    size: NDArray[np.uint64]
    shared: NDArray[np.uint64]
    site: NDArray[np.uint32]
    sites: Sequence[Site]
    labels: Sequence[Label]
    roles: dict[int, str]
    round_request: Callable[[int], int]
    steps: Sequence[int]


@dataclass(frozen=True)
class Peak:
    """What was live at the moment of the most allocated bytes.

    Attributes:
        allocated_bytes: By the sizes asked for and rounding; unsplit remainders are not seen here.
        by_category: Bytes by category.
        top_lines: Source lines by bytes.
        step_peaks_bytes: The most allocated within each step.
        shared_by_category: What was in shared memory when it held the most, by category.
        shared_lines: Source lines by the bytes that they had there then.
    """

    allocated_bytes: int
    by_category: dict[str, int]
    top_lines: list[LineShare]
    step_peaks_bytes: list[int]
    shared_by_category: dict[str, int]
    shared_lines: list[LineShare]


def find_peak(run: Run, line_of: Callable[[int], str], *, lines: int = 10) -> Peak:
    """Find the peak and take it apart.

    Args:
        run: The events.
        line_of: The source line of a stack, by its number.
        lines: How many source lines to name.
    """
    rounded = {int(size): run.round_request(int(size)) for size in np.unique(run.size)}
    change = np.zeros(len(run.action), dtype=np.int64)
    allocs = np.flatnonzero(run.action == Action.ALLOC)
    frees = np.flatnonzero(run.action == Action.FREE_REQUESTED)
    taken = np.array([rounded[int(size)] for size in run.size[allocs]], dtype=np.int64)
    change[allocs] = taken
    given = np.array([rounded[int(size)] for size in run.size[frees]], dtype=np.int64)
    change[frees] = -given
    level = np.cumsum(change)
    top = int(np.argmax(level)) if len(level) else 0
    ends = _ends(run, allocs, frees)
    live = allocs[(allocs <= top) & (ends[allocs] > top)]
    serials = {int(event): number for number, event in enumerate(allocs)}
    labels = _labels(run, allocs, ends)

    def shares(
        events: NDArray[np.int64], sizes: NDArray[np.uint64]
    ) -> tuple[dict[str, int], list[LineShare]]:
        by_category = dict.fromkeys(CATEGORIES, 0)
        by_line: Counter[str] = Counter()
        blocks: Counter[str] = Counter()
        for event in events.tolist():
            size = int(sizes[event])
            category = labels.get(event) or _category(run, event, int(ends[event]), serials[event])
            by_category[category] += size
            line = line_of(run.sites[run.site[event]].stack)
            by_line[line] += size
            blocks[line] += 1
        top_lines = by_line.most_common(lines)
        return by_category, [LineShare(line, size, blocks[line]) for line, size in top_lines]

    by_category, top_lines = shares(live, run.size)
    by_category["rounding"] = sum(rounded[size] - size for size in run.size[live].tolist())
    shared_by_category, shared_lines = shares(_live_in_shared(run, allocs, ends), run.shared)
    return Peak(
        allocated_bytes=int(level[top]) if len(level) else 0,
        by_category=by_category,
        top_lines=top_lines,
        step_peaks_bytes=_step_peaks(level, run.steps),
        shared_by_category=shared_by_category,
        shared_lines=shared_lines,
    )


def _live_in_shared(
    run: Run, allocs: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The blocks that were in shared memory when it held the most."""
    spilled = allocs[run.shared[allocs] > 0]
    change = np.zeros(len(run.action) + 1, dtype=np.int64)
    change[spilled] = run.shared[spilled]
    np.subtract.at(change, ends[spilled], run.shared[spilled].astype(np.int64))
    top = int(np.argmax(np.cumsum(change)))
    return spilled[(spilled <= top) & (ends[spilled] > top)]


def _ends(run: Run, allocs: NDArray[np.int64], frees: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each alloc event, the event that frees it; beyond the last where none does."""
    ends = np.full(len(run.action), len(run.action), dtype=np.int64)
    owner: dict[int, int] = {}
    order = np.sort(np.concatenate([allocs, frees]))
    is_alloc = run.action[order] == Action.ALLOC
    addresses = run.address[order].tolist()
    for event, address, starts in zip(order.tolist(), addresses, is_alloc.tolist(), strict=True):
        if starts:
            owner[address] = event
        elif address in owner:
            ends[owner.pop(address)] = event
    return ends


def _labels(run: Run, allocs: NDArray[np.int64], ends: NDArray[np.int64]) -> dict[int, str]:
    """Labels by the alloc event of the block that was live when they were given."""
    by_address: dict[int, list[int]] = {}
    wanted = {label.address for label in run.labels}
    for event in allocs.tolist():
        address = int(run.address[event])
        if address in wanted:
            by_address.setdefault(address, []).append(event)
    found: dict[int, str] = {}
    for label in run.labels:
        for event in reversed(by_address.get(label.address, [])):
            if event < label.event:
                if ends[event] >= label.event:
                    found[event] = label.category
                break
    return found


def _category(run: Run, event: int, end: int, serial: int) -> str:
    site = run.sites[run.site[event]]
    role = run.roles.get(serial, site.role)
    if role == "workspace":
        return "workspaces"
    if role == "temporary":
        return "temporaries"
    if site.phase != "forward":
        return "temporaries"
    if role == "input":
        return "inputs"
    dies_in = run.sites[run.site[end]].phase if end < len(run.action) else "backward"
    if site.grad_enabled and dies_in == "forward":
        return "temporaries"
    return "activations"


def _step_peaks(level: NDArray[np.int64], steps: Sequence[int]) -> list[int]:
    peaks = []
    begin = 0
    for end in steps:
        if end > begin:
            peaks.append(int(level[begin:end].max()))
            begin = end
    return peaks
