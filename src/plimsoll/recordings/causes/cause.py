"""The causes that recognisers find, and the facts that they examine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from plimsoll.recordings.analysis.category_names import NUMBER
from plimsoll.recordings.analysis.evidence import Place, place_of
from plimsoll.recordings.analysis.lines import users_lines, users_part
from plimsoll.recordings.analysis.steps import find_steps
from plimsoll.recordings.origin import origin_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.events import Frame
    from plimsoll.recordings.origin import Origin

_BACKWARD = (Place.BACKWARD, Place.RECOMPUTED)
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
LEAST_SHARE = 0.02
"""A cause with less than this share of peak reserved memory is not reported."""
SLIGHT_SHARE = 0.01
"""A cause with less than this share of the peak never stands in the first lines of a report."""
GROWS_SHARE = 0.05
"""Growth with at least this share of the peak comes before the memory of the program's work."""
LEAST_FULL = 0.1
"""A program that uses less than this share of its card gets no advice on its allocator."""


@dataclass(frozen=True)
class Cause:
    """One reason for a program's memory.

    Attributes:
        name: A stable key, such as "unused_activations".
        sentence: One sentence, without a full stop, that says which code holds how much memory.
        change: The advice, in the imperative; "" if the program needs none.
        bytes: The memory that the cause is known to hold at the peak.
        line: The source line of the cause, as "FILE:LINE FUNCTION", or neighbouring lines, as
            "FILE:FIRST-LAST FUNCTION"; None if unknown.
        patch: Text to copy: a line of code or a setting; "" without one.
        growth_bytes: The growth with each iteration of a loop; 0 if the memory does not grow.
        saves_bytes: The bytes of peak reserved memory that the change saved in a trial; None if
            the change was not tried.
        serves_failed_requests: Whether a trial of the change served the requests that failed; None
            if none failed, or the change was not tried.
        on_host: Whether the cause is about host memory.
        why_not: Why a trial of the change failed; "" if it did not fail, or without a trial.
    """

    name: str
    sentence: str
    change: str
    bytes: int
    line: str | None = None
    patch: str = ""
    growth_bytes: int = 0
    saves_bytes: int | None = None
    serves_failed_requests: bool | None = None
    on_host: bool = False
    why_not: str = ""

    def is_needless(self, peak_bytes: int) -> bool:
        """Returns whether the memory serves no purpose: unused graphs, and much that grows.

        Other causes say what the program's work takes.
        """
        return self.grows_much(peak_bytes) or self.name == "unused_activations"

    def grows_much(self, peak_bytes: int) -> bool:
        """Returns whether the memory grows, and is at least `GROWS_SHARE` of the peak."""
        return bool(self.growth_bytes) and self.bytes >= GROWS_SHARE * peak_bytes

    def hardly_helps(self, reserved_bytes: int) -> bool:
        """Returns whether the change was tried and saved less than 2 % of reserved memory.

        Returns False if the cause's memory grows: a short trial does not show all that the change
        saves.
        """
        is_tried = self.saves_bytes is not None and not self.growth_bytes
        return is_tried and (self.saves_bytes or 0) < LEAST_SHARE * reserved_bytes

    def is_slight(self, peak_bytes: int) -> bool:
        """Returns whether the cause is too small to explain the program's memory.

        It is if it holds less than 1 % of the peak, or if it grows and its change, tried, saved
        less than that. A change that serves a failed request is never slight.
        """
        if self.on_host or self.serves_failed_requests:
            return False
        least = SLIGHT_SHARE * peak_bytes
        saves_little = self.saves_bytes is not None and self.saves_bytes < least
        return self.bytes < least or (bool(self.growth_bytes) and saves_little)


def main_cause(causes: Sequence[Cause], peak_bytes: int) -> Cause | None:
    """Returns the first cause that is not slight; None if there is none.

    Args:
        causes: The causes, the best explanation first.
        peak_bytes: The memory at the program's peak.
    """
    return next((cause for cause in causes if not cause.is_slight(peak_bytes)), None)


def other_growth(causes: Sequence[Cause], main: Cause | None) -> Cause | None:
    """Returns the first cause besides `main` whose memory grows; None if there is none."""
    return next((cause for cause in causes if cause.growth_bytes and cause is not main), None)


@dataclass(frozen=True)
class MathAttention:
    """Attention without a fused kernel.

    Attributes:
        reason: Why no fused kernel ran.
        line: The first source line that called attention, or None.
        bytes: The size of the attention scores in the largest call.
    """

    reason: str
    line: str | None
    bytes: int


@dataclass(frozen=True)
class Notes:
    """Facts about the running program besides its requests. Recordings may lack these facts.

    Attributes:
        math_attention: Calls of attention without a fused kernel.
        pinned_asked_bytes: The peak of page-locked memory that the program requested.
        pinned_taken_bytes: The peak of page-locked memory that PyTorch gave to these requests. It
            can be larger than `pinned_asked_bytes`, because PyTorch rounds the requests up.
        has_pinned_threshold: Whether this PyTorch has `pinned_max_round_threshold_mb`.
        searches: Whether cuDNN searched for the fastest plans (`torch.backends.cudnn.benchmark`).
        devices: The peaks of allocated memory by device, in bytes.
    """

    math_attention: Sequence[MathAttention] = ()
    pinned_asked_bytes: int = 0
    pinned_taken_bytes: int = 0
    has_pinned_threshold: bool = False
    searches: bool = False
    devices: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Reserved:
    """Reserved memory at its peak, in bytes.

    Attributes:
        bytes: All reserved bytes.
        excess_bytes: The bytes beyond the most that blocks took at once.
        pending_bytes: Bytes that the program has freed but another stream may still use.
        idle_streams: The number of streams with reserved memory but no live block.
        idle_stream_bytes: The reserved memory of these streams.
    """

    bytes: int
    excess_bytes: int
    pending_bytes: int = 0
    idle_streams: int = 0
    idle_stream_bytes: int = 0


@dataclass(frozen=True)
class Facts:
    """The input of recognisers for one device.

    Attributes:
        device: The device's number.
        blocks: All blocks.
        category: The use of each block, an index into `CATEGORIES`. uint8.
        line: The index of each block's source line in `lines`. int64.
        lines: Source lines.
        frames: A function that returns the frames of a stack, innermost first, given its number.
        steps: The program's steps.
        event: The number of the event after which allocated memory is at its peak.
        reserved: Reserved memory at its peak.
        notes: Facts that the requests do not show.
        failed: Whether a request failed for lack of memory.
        room_bytes: The most that the allocator could reserve on the card; None if unknown.
    """

    device: int
    blocks: Lifetimes
    category: NDArray[np.uint8]
    line: NDArray[np.int64]
    lines: Sequence[str]
    frames: Callable[[int], list[Frame]]
    steps: Steps
    event: int
    reserved: Reserved
    notes: Notes = field(default_factory=Notes)
    failed: bool = False
    room_bytes: int | None = None

    @property
    def has_ample_room(self) -> bool:
        """Whether advice on the allocator is needless, because most of the card is unused."""
        if self.failed or self.room_bytes is None:
            return False
        return self.reserved.bytes < LEAST_FULL * self.room_bytes

    @cached_property
    def passes(self) -> Steps:
        """`steps`, or newly detected steps if `steps` is empty and does not come from marks."""
        is_said = self.steps.source == "marks" or len(self.steps)
        return self.steps if is_said else find_steps(self.blocks)

    @cached_property
    def live(self) -> NDArray[np.int64]:
        """The indices of the blocks that are live at the peak."""
        return self.blocks.live_at(self.event)

    @cached_property
    def allocated_bytes(self) -> int:
        """The requested bytes of the blocks that are live at the peak."""
        return self.bytes_of(self.live)

    def bytes_of(self, blocks: NDArray[np.int64]) -> int:
        """Returns the requested bytes of these blocks."""
        return int(self.blocks.size[blocks].sum())

    def live_of(self, *categories: str) -> NDArray[np.int64]:
        """Returns the indices of the blocks of these categories that are live at the peak."""
        numbers = [NUMBER[category] for category in categories]
        return self.live[np.isin(self.category[self.live], numbers)]

    def is_live_under(self, is_meant: Callable[[str, str], bool]) -> NDArray[np.bool_]:
        """Returns a mask over `live`: blocks whose stack has a frame that `is_meant` accepts."""
        stacks = self.blocks.stack[self.live]
        numbers, which = np.unique(stacks, return_inverse=True)
        found = [
            any(is_meant(file.replace("\\", "/"), name) for file, _, name in self.frames(int(one)))
            for one in numbers
        ]
        return np.array(found, dtype=np.bool_)[which]

    def are_from(
        self, blocks: NDArray[np.int64], is_meant: Callable[[Origin], bool]
    ) -> NDArray[np.bool_]:
        """Returns a mask of the blocks with a recorded origin that `is_meant` accepts."""
        numbers, which = np.unique(self.blocks.stack[blocks], return_inverse=True)
        origins = [origin_of(self.frames(int(one))) for one in numbers]
        found = [origin is not None and is_meant(origin) for origin in origins]
        return np.array(found, dtype=np.bool_)[which]

    @cached_property
    def place(self) -> NDArray[np.uint8]:
        """The part of the program that requested each block, a `Place`."""
        numbers, which = np.unique(self.blocks.stack, return_inverse=True)
        stacks = [self.frames(int(one)) for one in numbers]
        places = [place_of(stack, origin_of(stack)) for stack in stacks]
        return np.array(places, dtype=np.uint8)[which]

    @cached_property
    def backward_starts(self) -> NDArray[np.int64]:
        """Returns the events at which backward passes allocated, in order."""
        # Blocks from before the history have no stack, for which `place_of` returns BACKWARD.
        is_backward = np.isin(self.place, _BACKWARD) & (self.blocks.start >= 0)
        return np.sort(self.blocks.start[is_backward])

    @cached_property
    def is_freed_in_backward(self) -> NDArray[np.bool_]:
        """Returns a mask of the blocks that are freed during a backward pass.

        A free counts if the last allocation before it was made by a backward pass.
        """
        starts = np.sort(self.blocks.start)
        before = starts[np.maximum(np.searchsorted(starts, self.blocks.end) - 1, 0)]
        ended = self.blocks.end < self.blocks.event_count
        found: NDArray[np.bool_] = ended & np.isin(before, self.backward_starts)
        return found

    @cached_property
    def is_trained(self) -> NDArray[np.bool_]:
        """Returns a mask of the blocks that a backward pass frees in their step or the next one."""
        steps = np.searchsorted(self.steps.boundaries, (self.blocks.start, self.blocks.end))
        found: NDArray[np.bool_] = self.is_freed_in_backward & (steps[1] - steps[0] <= 1)
        return found

    @cached_property
    def lines_of_training(self) -> frozenset[str]:
        """The user's lines under which a backward pass has used the graph of a forward pass.

        Such a pass frees what the graph keeps, unless the program retains the graph. On simulated
        GPUs its requests also have the stacks of the forward pass.
        """
        is_backward = np.isin(self.place, _BACKWARD) & (self.blocks.start >= 0)
        is_known = self.blocks.stack > 0
        stacks = np.unique(self.blocks.stack[(self.is_trained | is_backward) & is_known])
        return frozenset(line for one in stacks.tolist() for line in users_lines(self.frames(one)))

    def callers_lines(self, blocks: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Returns the user's lines that led to requests and are not run by training.

        A line in a module's `forward` runs in training too, so it does not show which code called
        the module. So plimsoll searches each call stack from its innermost line outwards, up to the
        first line that training does not run. If no backward pass ran, the search begins at the
        line that called the outermost module. The line of a comprehension is the line around it.

        Args:
            blocks: The indices of the blocks.

        Returns:
            For each line that was found, the blocks whose requests it led to.
        """
        found: dict[str, list[NDArray[np.int64]]] = {}
        stacks, place = np.unique(self.blocks.stack[blocks], return_inverse=True)
        by_stack = blocks[np.argsort(place, kind="stable")]
        of_stack = np.split(by_stack, np.cumsum(np.bincount(place))[:-1])
        for stack, mine in zip(stacks.tolist(), of_stack, strict=False):
            frames = self.frames(stack)
            if not self.lines_of_training:
                frames = _outside_modules(frames)
            free = [line for line in users_lines(frames) if line not in self.lines_of_training]
            while len(free) > 1 and free[0].endswith(_COMPREHENSIONS):
                del free[0]
            if free:
                found.setdefault(free[0], []).append(mine)
        return {line: np.concatenate(parts) for line, parts in found.items()}

    def callers_line(self, blocks: NDArray[np.int64]) -> str | None:
        """Returns the line of `callers_lines` whose blocks have the most bytes, or None."""
        sizes = {line: self.bytes_of(own) for line, own in self.callers_lines(blocks).items()}
        return max(sizes, key=sizes.__getitem__, default=None)

    def are_of_line(self, blocks: NDArray[np.int64], line: str | None) -> NDArray[np.bool_]:
        """Returns a mask of the blocks that a user's line requested."""
        is_line = np.array([users_part(each) == line for each in self.lines], dtype=np.bool_)
        found: NDArray[np.bool_] = is_line[self.line[blocks]]
        return found

    def line_of_most(self, blocks: NDArray[np.int64]) -> str | None:
        """Returns the user's line that requested more bytes of `blocks` than any other line.

        Returns None if no line is known for any of these blocks.
        """
        by_line: dict[str, int] = {}
        for index, size in zip(
            self.line[blocks].tolist(), self.blocks.size[blocks].tolist(), strict=True
        ):
            name = users_part(self.lines[index])
            if name is not None:
                by_line[name] = by_line.get(name, 0) + size
        return max(by_line, key=by_line.__getitem__, default=None)


def _outside_modules(frames: list[Frame]) -> list[Frame]:
    """Returns the frames outside the outermost call of a module; all frames without such a call."""
    calls = [
        place
        for place, (file, _, name) in enumerate(frames)
        if name == "_call_impl" and file.replace("\\", "/").endswith("torch/nn/modules/module.py")
    ]
    return frames[calls[-1] + 1 :] if calls else frames


class Recogniser(Protocol):
    """Finds one cause."""

    __name__: str

    def __call__(self, facts: Facts) -> Cause | None:
        """Returns the cause, or None if it is absent."""
        ...
