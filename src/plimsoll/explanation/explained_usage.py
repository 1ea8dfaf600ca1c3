"""Collects the facts that an explanation describes: steps, categories, and the peaks of memory."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.base.units import format_size
from plimsoll.explanation.parts import ReservedUse
from plimsoll.explanation.peak import find_peak, step_of
from plimsoll.explanation.state import recorded_failures
from plimsoll.recordings.analysis.categories import find_categories
from plimsoll.recordings.analysis.lines import source_lines
from plimsoll.recordings.analysis.steps import find_steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.explanation.explained_device import Device
    from plimsoll.explanation.state import Past
    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.recording import DeviceTrace


class ExplainedUsage:
    """The memory of the explained device.

    Attributes:
        device: The device, with its history.
        trace: Its events.
        lifetimes: Its blocks.
        steps: The program's steps.
        categories: The use that each block has.
        has_stacks: Whether the recording has call stacks, so that blocks have source lines.
        group: The index of each block's name in `names`.
        names: The source lines that blocks are grouped by; without stacks, the blocks' sizes.
        peak: The live blocks when the most bytes were allocated.
        reserved: The parts of reserved memory when the most bytes were reserved.
    """

    def __init__(self, device: Device) -> None:
        (self.trace,) = device.recording.devices
        self.device, self.lifetimes = device, device.lifetimes
        trace, lifetimes, recording = self.trace, device.lifetimes, device.recording
        self.steps = find_steps(lifetimes, recording.marks, device=trace.device)
        self.categories = find_categories(
            lifetimes,
            self.steps,
            trace.frames,
            recorded_failures(trace),
            recording.labels_of(trace.device),
        )
        self.has_stacks = bool(lifetimes.stack.any())
        self.group, self.names = _groups(trace, lifetimes, has_stacks=self.has_stacks)
        self.peak = find_peak(
            trace,
            lifetimes,
            self.steps,
            self.categories,
            self.group if self.has_stacks else None,
            self.names,
            device.past.round_request,
            device.peak_allocated_bytes,
        )
        self.reserved = _reserved(device.past, self.steps)


class Owners:
    """Finds the names of the blocks that were live at one moment.

    The address of a block determines its name. If a replay changed the addresses, the size
    determines the name. If blocks of that size have several names, the name is "blocks of SIZE".
    """

    def __init__(self, usage: ExplainedUsage, event: int) -> None:
        lifetimes = usage.lifetimes
        held = np.flatnonzero((lifetimes.start <= event) & (lifetimes.completed > event))
        held = held[np.argsort(lifetimes.address[held])]
        self._begins = lifetimes.address[held].tolist()
        self._sizes = lifetimes.size[held].tolist()
        self._names: list[str] = [usage.names[one] for one in usage.group[held]]
        self._has_addresses = usage.device.past.has_recorded_addresses
        self._by_size: dict[int, set[str]] = {}
        for size, name in zip(self._sizes, self._names, strict=True):
            self._by_size.setdefault(size, set()).add(name)

    def __call__(self, address: int, size: int) -> str:
        """Returns a live block's name by its address and size: its line, or "blocks of SIZE"."""
        if not self._has_addresses:
            of_size = self._by_size.get(size, set())
            return next(iter(of_size)) if len(of_size) == 1 else f"blocks of {format_size(size)}"
        place = bisect_right(self._begins, address) - 1
        if place >= 0 and address < self._begins[place] + max(self._sizes[place], 1):
            return self._names[place]
        return f"blocks of {format_size(size)}"


def _groups(
    trace: DeviceTrace, lifetimes: Lifetimes, *, has_stacks: bool
) -> tuple[NDArray[np.int64], list[str]]:
    """Returns the number of each block's group, and the groups' names.

    A group is a source line. If call stacks were not recorded, a group is a size.
    """
    if has_stacks:
        return source_lines(lifetimes.stack, trace.frames)
    sizes, place = np.unique(lifetimes.size, return_inverse=True)
    return place, [f"blocks of {format_size(int(size))}" for size in sizes]


def _reserved(past: Past, steps: Steps) -> ReservedUse:
    peak = past.peak
    return ReservedUse(
        event=peak.event,
        step=step_of(steps, peak.event),
        reserved_bytes=peak.reserved_bytes,
        allocated_bytes=peak.requested_bytes + peak.rounding_bytes - peak.pending_free_bytes,
        rounding_bytes=peak.rounding_bytes,
        pending_bytes=peak.pending_free_bytes,
        cached_bytes=peak.cached_bytes,
        fragments_bytes=peak.split_bytes,
        shared_bytes=past.peak_shared_bytes,
        exact=past.is_exact,
    )
