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
LEAST_SHARE = 0.02
"""A cause with less than this share of peak reserved memory is not reported."""
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
        line: The source line of the cause; None if unknown.
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

    def hardly_helps(self, reserved_bytes: int) -> bool:
        """Returns whether the change was tried and saved less than 2 % of reserved memory.

        Returns False if the cause's memory grows: a short trial does not show all that the change
        saves.
        """
        is_tried = self.saves_bytes is not None and not self.growth_bytes
        return is_tried and (self.saves_bytes or 0) < LEAST_SHARE * reserved_bytes


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

    def callers_line(self, blocks: NDArray[np.int64]) -> str | None:
        """Returns the user's line that led to the requests of `blocks` and is not run by training.

        A line in a module's `forward` runs in training too, so it does not show which code called
        the module. So plimsoll searches each call stack from its innermost line outwards, up to the
        first line that training does not run. If it finds several lines, returns the one whose
        blocks have the most bytes. Returns None if it finds no line.
        """
        trained = self.blocks.stack[self.is_trained & (self.blocks.stack > 0)]
        taken: set[str] = set()
        for stack in np.unique(trained).tolist():
            taken.update(users_lines(self.frames(stack)))
        by_line: dict[str, int] = {}
        for stack in np.unique(self.blocks.stack[blocks]).tolist():
            mine = blocks[self.blocks.stack[blocks] == stack]
            free = (line for line in users_lines(self.frames(stack)) if line not in taken)
            if (line := next(free, None)) is not None:
                by_line[line] = by_line.get(line, 0) + self.bytes_of(mine)
        return max(by_line, key=by_line.__getitem__, default=None)

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


class Recogniser(Protocol):
    """Finds one cause."""

    __name__: str

    def __call__(self, facts: Facts) -> Cause | None:
        """Returns the cause, or None if it is absent."""
        ...
