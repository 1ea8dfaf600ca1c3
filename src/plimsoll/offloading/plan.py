"""Predicts from earlier steps which saved storages must leave the card. Works without PyTorch.

A step is a sequence of events: a storage is saved (forward), a storage is used (backward). Between
two events the program also allocates memory besides the saved storages. This memory is called *the
program's own memory*, and plimsoll measures its peak. While a step repeats an earlier one, event by
event, the plan knows how much memory the program is about to allocate, which storages are used
next, and how many bytes have to leave. The backward pass uses the oldest storages last, so the
oldest storages leave. If a step differs from all earlier steps, the plan predicts nothing, and
every storage that can leave the card leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from plimsoll.base.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SMALLEST_MARGIN = 8 * MiB
_PROFILES = 16
_GENERATION = 16  # at most this many steps with equal events share a profile


class Event(NamedTuple):
    """The saving or the use of a storage; storages are numbered in the order of saving."""

    is_use: bool
    storage: int
    size: int

    def resembles(self, known: Event) -> bool:
        """Returns whether this is the known event, or the same event of a smaller batch."""
        return self[:2] == known[:2] and self.size <= known.size


@dataclass
class Profile:
    """The events and the memory of a generation of steps.

    A *generation* has up to `_GENERATION` steps, all with equal events. Each figure of
    `program_bytes` is the highest figure of the generation's steps.

    Attributes:
        events: The events in order.
        program_bytes: For each event, the peak of the program's own memory until the next event,
            minus the program's own memory at the beginning of the step.
        older_bytes: `program_bytes` of the previous generation. Steps with equal events may still
            differ in memory: if gradients are accumulated, only the first step allocates gradients.
        steps: The number of steps in this generation.
        gone: For each dropped storage, the number of events before it was dropped.
        held: Storages to which the program itself held references until the backward pass. Moving
            them to host memory earlier would free nothing on the card.
        unread: Storages that were dropped because only their shape was needed.
    """

    events: list[Event] = field(default_factory=list)
    program_bytes: list[int] = field(default_factory=list)
    older_bytes: list[int] = field(default_factory=list)
    steps: int = 1
    gone: dict[int, int] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    unread: set[int] = field(default_factory=set)

    def has_backward(self) -> bool:
        """Returns whether any storage was used."""
        return any(event.is_use for event in self.events)

    def resembles(self, known: Profile) -> bool:
        """Returns whether this step repeats the known one so far."""
        return len(self.events) <= len(known.events) and all(
            event.resembles(wanted)
            for event, wanted in zip(self.events, known.events, strict=False)
        )

    def follow(self, before: Profile) -> None:
        """Takes over the figures of an earlier step with equal events."""
        if before.steps < _GENERATION:
            self.steps = before.steps + 1
            self.program_bytes = list(map(max, self.program_bytes, before.program_bytes))
            self.older_bytes = before.older_bytes
        else:
            self.older_bytes = before.program_bytes

    def expected(self, first: int, last: int) -> int:
        """Returns the peak of the program's own memory between two events, both included."""
        span = slice(first, last + 1)
        return max(max(self.program_bytes[span]), max(self.older_bytes[span], default=0))

    def expected_of_forward(self) -> list[int]:
        """Returns one peak of the program's own memory for each forward event.

        The peak covers the time from the event to the end of the forward pass.
        """
        first_use = next(at for at, event in enumerate(self.events) if event.is_use)
        backwards = (self.expected(at, at) for at in reversed(range(first_use)))
        return list(accumulate(backwards, max))[::-1]

    def excess(self, limit: int) -> int:
        """Returns by how many bytes this step would exceed a limit if no storage left the card.

        Neither the step's memory nor the limit includes the program's own memory at the beginning
        of the step. The result is negative if the step stays below the limit.
        """
        dropped: dict[int, int] = {}
        sizes = [event.size for event in self.events if not event.is_use]
        for storage, position in self.gone.items():
            dropped[position] = dropped.get(position, 0) + sizes[storage]
        saved = most = 0
        for position, event in enumerate(self.events):
            saved -= dropped.get(position, 0)
            if not event.is_use:
                saved += event.size
            most = max(most, saved + self.expected(position, position))
        return most - limit


class Plan:
    """Compares the current step with earlier steps, to predict its events and its memory.

    Args:
        budget: The bytes that the whole program may use on the card.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._margin = min(_SMALLEST_MARGIN, budget // 32)
        self._profiles: list[Profile] = []  # the most recent step first
        self._now = Profile()
        self._known: Profile | None = None
        self._base = 0
        self._saved = 0
        self._early: set[int] = set()
        self._forward: list[int] = []

    @property
    def limit(self) -> int:
        """The budget minus the margin for memory that is free but not contiguous."""
        return self._budget - self._margin

    @property
    def position(self) -> int:
        """The number of events of this step so far."""
        return len(self._now.events)

    @property
    def is_known(self) -> bool:
        """Whether this step repeats an earlier one so far."""
        return self._known is not None

    def begin(self, program_bytes: int) -> None:
        """Begins a step; `program_bytes` is the program's own memory at this moment."""
        if self._now.has_backward():
            self._remember(self._now)
        self._now = Profile()
        self._base = program_bytes
        self._saved = 0

    def save(self, size: int) -> int:
        """Records that a storage is saved. Returns its index in the step."""
        self._saved += 1
        self._follow(Event(False, self._saved - 1, size))
        return self._saved - 1

    def use(self, index: int, size: int) -> None:
        """Records that the backward pass uses a storage."""
        self._follow(Event(True, index, size))

    def drop(self, index: int) -> None:
        """Records that a storage is no longer needed."""
        if 0 <= index < self._saved:
            self._now.gone.setdefault(index, self.position)

    def discard(self, index: int) -> None:
        """Records that a storage's values were dropped, because only its shape is needed."""
        self.drop(index)
        if 0 <= index < self._saved:
            self._now.unread.add(index)

    def hold(self, indices: Iterable[int]) -> None:
        """Records the storages that the program still holds when the backward pass begins."""
        self._now.held.update(index for index in indices if 0 <= index < self._saved)

    def measure(self, program_bytes: int) -> None:
        """Records the peak of the program's own memory since the last event."""
        if self.position:
            most = max(self._now.program_bytes[-1], program_bytes - self._base)
            self._now.program_bytes[-1] = most

    def keep_away(self, size: int) -> None:
        """Increases the budget's margin by `size` bytes, because contiguous memory was lacking."""
        self._margin = min(self._margin + size, self._budget // 4)

    def expected(self, position: int | None = None) -> int | None:
        """Returns the expected peak of the program's own memory from now until an event ends.

        An event ends when the next event begins.

        Args:
            position: The position of the event; None for the latest event so far.

        Returns:
            Bytes, or None if unknown.
        """
        if self._known is None:
            return None
        now = self.position - 1
        return self._base + self._known.expected(now, now if position is None else position)

    def expected_of_forward(self) -> int | None:
        """Returns the expected peak of the program's own memory until the backward pass begins.

        The pager makes room for this peak early. Storages that are saved later then reuse the freed
        memory, which leaves contiguous memory for the largest allocation.
        """
        now = self.position - 1
        return self._base + self._forward[now] if now < len(self._forward) else self.expected()

    def leaves(self, index: int) -> bool:
        """Returns whether a storage should begin to leave as soon as it is saved."""
        return self._known is not None and index in self._early

    def coming(self, position: int) -> Iterator[tuple[int, int]]:
        """Yields the uses that the plan expects, from a position on.

        Each use is a pair: the position of the event, and the index of the storage that it uses.
        Yields nothing if this step repeats no earlier step.
        """
        if self._known is not None:
            events = self._known.events
            for ahead in range(max(position, self.position), len(events)):
                if events[ahead].is_use:
                    yield ahead, events[ahead].storage

    def _follow(self, event: Event) -> None:
        position = self.position
        self._now.events.append(event)
        self._now.program_bytes.append(0)
        known = self._known
        if position == 0 or (
            known is not None
            and (position == len(known.events) or not event.resembles(known.events[position]))
        ):
            self._known = self._find()
            self._early = set() if self._known is None else self._choose(self._known)
            self._forward = [] if self._known is None else self._known.expected_of_forward()

    def _find(self) -> Profile | None:
        """Returns the known step that this step repeats so far; None if there is none.

        If there are several, returns the one whose first storage is the smallest.
        """
        resembled = (profile for profile in self._profiles if self._now.resembles(profile))
        return min(resembled, key=lambda profile: profile.events[0].size, default=None)

    def _choose(self, known: Profile) -> set[int]:
        """Chooses the storages to move out, the earliest saved first, until enough bytes leave.

        A storage stays if it is at least four times as large as what still has to leave.
        `Pager.make_room` moves such a storage out later, if memory really runs short.
        """
        excess = known.excess(self.limit - self._base)
        chosen = set()
        stays = known.held | known.unread
        for event in known.events:
            if not event.is_use and event.storage not in stays and event.size < 4 * excess:
                chosen.add(event.storage)
                excess -= event.size
        return chosen

    def _remember(self, step: Profile) -> None:
        # After the last event no saved storage is left to move, so the peak there does not matter.
        step.program_bytes[-1] = 0
        for profile in self._profiles:
            if profile.events == step.events:
                self._profiles.remove(profile)
                step.follow(profile)
                break
        self._profiles.insert(0, step)
        del self._profiles[_PROFILES:]
