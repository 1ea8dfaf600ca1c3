"""The causes that recognisers find, and the facts that they look at."""

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

_BACKWARD = (Place.BACKWARD, Place.RECOMPUTED)
LEAST_SHARE = 0.02
"""The share of what is reserved at its peak below which nothing is worth a sentence."""


@dataclass(frozen=True)
class Cause:
    """One reason for the memory that a program takes.

    Attributes:
        name: A stable key, such as "unused_activations".
        sentence: The holder and the memory, in one sentence without a full stop.
        change: The advice, in the imperative.
        bytes: The memory that the cause holds at the peak, as far as it is known.
        line: The source line that it is about; None where no line is known.
        patch: Text to copy: a line of code or a setting; "" where there is none.
        growth_bytes: The growth with each pass of a loop; 0 where it does not grow.
        saves_bytes: The part of peak reserved memory that the change saved in a trial; None where
            it was not tried.
        on_host: Whether it is about the host's memory.
        why_not: The reason why a trial of the change failed; "" where it did not fail, or where
            there was no trial.
    """

    name: str
    sentence: str
    change: str
    bytes: int
    line: str | None = None
    patch: str = ""
    growth_bytes: int = 0
    saves_bytes: int | None = None
    on_host: bool = False
    why_not: str = ""

    def hardly_helps(self, reserved_bytes: int) -> bool:
        """Whether the change was tried and saved less than 2 % of what is reserved.

        A loop that grows is worth a change whatever a short trial saved.
        """
        is_tried = self.saves_bytes is not None and not self.growth_bytes
        return is_tried and (self.saves_bytes or 0) < LEAST_SHARE * reserved_bytes


@dataclass(frozen=True)
class MathAttention:
    """Attention that no fused kernel served.

    Attributes:
        reason: Why not.
        line: The first line that called it, or None.
        bytes: The scores of its largest call.
    """

    reason: str
    line: str | None
    bytes: int


@dataclass(frozen=True)
class Notes:
    """What a running program said of itself, beyond its requests. Recordings may lack it.

    Attributes:
        math_attention: Calls of attention without a fused kernel.
        pinned_asked_bytes: The page-locked memory that the program had at its peak.
        pinned_taken_bytes: The most that the pool used for it.
        has_pinned_threshold: Whether this PyTorch has `pinned_max_round_threshold_mb`.
        searches: Whether cuDNN searched for plans (`torch.backends.cudnn.benchmark`).
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
    """Reserved memory at the moment when it was the most, in bytes.

    Attributes:
        bytes: All of it.
        free_bytes: The part in no block.
        pending_bytes: Freed by the program, while another stream may still use it.
        idle_streams: The streams that had reserved memory and no live block.
        idle_stream_bytes: The memory that these had reserved.
    """

    bytes: int
    free_bytes: int
    pending_bytes: int = 0
    idle_streams: int = 0
    idle_stream_bytes: int = 0


@dataclass(frozen=True)
class Facts:
    """One device's memory, as recognisers look at it.

    Attributes:
        device: The device's number.
        blocks: All blocks.
        category: What each block is for, an index into `CATEGORIES`. uint8.
        line: The index of each block's source line in `lines`. int64.
        lines: Source lines.
        frames: The frames of a stack by its number, innermost first.
        steps: The program's steps.
        event: The moment of the most allocated memory.
        reserved: Reserved memory at its peak.
        notes: The program's own notes.
        failed: Whether a request failed for want of memory.
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

    @cached_property
    def passes(self) -> Steps:
        """The steps that the program said, else those of the rhythm of its allocations."""
        is_said = self.steps.source == "marks" or len(self.steps)
        return self.steps if is_said else find_steps(self.blocks)

    @cached_property
    def live(self) -> NDArray[np.int64]:
        """The indices of the blocks that are live at the peak."""
        return self.blocks.live_at(self.event)

    @cached_property
    def allocated_bytes(self) -> int:
        """The bytes that the blocks which are live at the peak asked for."""
        return self.bytes_of(self.live)

    def bytes_of(self, blocks: NDArray[np.int64]) -> int:
        """The bytes that these blocks asked for."""
        return int(self.blocks.size[blocks].sum())

    def live_of(self, *categories: str) -> NDArray[np.int64]:
        """The indices of the live blocks of these categories."""
        numbers = [NUMBER[category] for category in categories]
        return self.live[np.isin(self.category[self.live], numbers)]

    def is_live_under(self, is_meant: Callable[[str, str], bool]) -> NDArray[np.bool_]:
        """Which live blocks a function asked for: called with a frame's file and function."""
        stacks = self.blocks.stack[self.live]
        numbers, which = np.unique(stacks, return_inverse=True)
        found = [
            any(is_meant(file.replace("\\", "/"), name) for file, _, name in self.frames(int(one)))
            for one in numbers
        ]
        return np.array(found, dtype=np.bool_)[which]

    def records_graph(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these blocks were made while autograd recorded, as far as that is known."""
        numbers, which = np.unique(self.blocks.stack[blocks], return_inverse=True)
        origins = [origin_of(self.frames(int(one))) for one in numbers]
        found = [origin is not None and origin.keeps_graph for origin in origins]
        return np.array(found, dtype=np.bool_)[which]

    @cached_property
    def backward_starts(self) -> NDArray[np.int64]:
        """The events at which a backward pass allocated, in order."""
        numbers, which = np.unique(self.blocks.stack, return_inverse=True)
        stacks = [self.frames(int(one)) for one in numbers]
        places = [place_of(stack, origin_of(stack)) for stack in stacks]
        backward = np.array([place in _BACKWARD for place in places], dtype=np.bool_)
        return np.sort(self.blocks.start[backward[which]])

    @cached_property
    def is_trained(self) -> NDArray[np.bool_]:
        """Which blocks end in the backward pass of their step.

        The last request before their free was one of a backward pass, and at most one step ended
        since they were made.
        """
        starts = np.sort(self.blocks.start)
        before = starts[np.maximum(np.searchsorted(starts, self.blocks.end) - 1, 0)]
        ended = self.blocks.end < self.blocks.event_count
        steps = np.searchsorted(self.steps.boundaries, (self.blocks.start, self.blocks.end))
        is_near = steps[1] - steps[0] <= 1
        found: NDArray[np.bool_] = ended & is_near & np.isin(before, self.backward_starts)
        return found

    def callers_line(self, blocks: NDArray[np.int64]) -> str | None:
        """The innermost user's line under which these blocks are made, and no training is done.

        A line of a module's `forward` also makes what a backward pass needs. So the line is sought
        outwards from there. None where training is done under every line.
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
        """Which of these blocks a user's line asked for."""
        is_line = np.array([users_part(each) == line for each in self.lines], dtype=np.bool_)
        found: NDArray[np.bool_] = is_line[self.line[blocks]]
        return found

    def line_of_most(self, blocks: NDArray[np.int64]) -> str | None:
        """The user's line that asked for most of these blocks' bytes; None without lines."""
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
        """Return the cause, or None where it is not there."""
        ...
