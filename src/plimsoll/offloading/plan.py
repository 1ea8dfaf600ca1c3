"""Which saved storages must leave the card, from what the step before has shown. Knows no PyTorch.

A step is a sequence of events: a storage is saved (forward), a storage is used (backward). Between
two events the program takes memory of its own, besides what is saved; the most of it is measured.
While a step repeats an earlier one, event by event, the plan knows how much the program is about
to take, which storages are used next, and how many bytes have to leave at all. Storages saved first
are used last, so they are the ones to leave. Where a step departs from what is known, nothing is
known until it ends, and every storage that can leave should.
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
_GENERATION = 16  # steps


class Event(NamedTuple):
    """A storage, counted in the order of saving, is saved or used."""

    is_use: bool
    storage: int
    size: int

    def resembles(self, known: Event) -> bool:
        """Whether this is the known event, or the same in a smaller batch."""
        return self[:2] == known[:2] and self.size <= known.size


@dataclass
class Profile:
    """What one step did, or equal steps.

    Attributes:
        events: In order.
        program_bytes: For each event, the most that the program took of its own until the next one,
            above what it had when the step began.
        older_bytes: The same of the generation of steps before; what equal steps take differs, as
            when only the first of some makes the gradients.
        steps: In this generation.
        gone: For each storage that was dropped, how many events there were by then.
        held: Storages that the program itself held on to until the backward pass: to drop them
            frees nothing.
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
        """Whether anything was used."""
        return any(event.is_use for event in self.events)

    def resembles(self, known: Profile) -> bool:
        """Whether this step has been as the known one, as far as it went."""
        return len(self.events) <= len(known.events) and all(
            event.resembles(wanted)
            for event, wanted in zip(self.events, known.events, strict=False)
        )

    def follow(self, before: Profile) -> None:
        """Learn from an equal step before this one."""
        if before.steps < _GENERATION:
            self.steps = before.steps + 1
            self.program_bytes = list(map(max, self.program_bytes, before.program_bytes))
            self.older_bytes = before.older_bytes
        else:
            self.older_bytes = before.program_bytes

    def expected(self, first: int, last: int) -> int:
        """The most that the program takes of its own from one event until after another."""
        span = slice(first, last + 1)
        return max(max(self.program_bytes[span]), max(self.older_bytes[span], default=0))

    def expected_of_forward(self) -> list[int]:
        """For each event of the forward pass, the most that is taken from it on until it ends."""
        first_use = next(at for at, event in enumerate(self.events) if event.is_use)
        backwards = (self.expected(at, at) for at in reversed(range(first_use)))
        return list(accumulate(backwards, max))[::-1]

    def excess(self, limit: int) -> int:
        """By how much the step would pass a limit, above its beginning, if nothing left."""
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
    """Steps as they happen, beside what is known of them.

    Args:
        budget: Bytes of the card for the whole program.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._margin = min(_SMALLEST_MARGIN, budget // 32)
        self._profiles: list[Profile] = []  # the last one first
        self._now = Profile()
        self._known: Profile | None = None
        self._base = 0
        self._saved = 0
        self._early: set[int] = set()
        self._forward: list[int] = []

    @property
    def limit(self) -> int:
        """The budget, less a margin."""
        return self._budget - self._margin

    @property
    def position(self) -> int:
        """Events of this step so far."""
        return len(self._now.events)

    @property
    def is_known(self) -> bool:
        """Whether this step has been as an earlier one, so far."""
        return self._known is not None

    def begin(self, program_bytes: int) -> None:
        """A new step; what the program takes of its own now."""
        if self._now.has_backward():
            self._remember(self._now)
        self._now = Profile()
        self._base = program_bytes
        self._saved = 0

    def save(self, size: int) -> int:
        """A storage is saved: its index."""
        self._saved += 1
        self._follow(Event(False, self._saved - 1, size))
        return self._saved - 1

    def use(self, index: int, size: int) -> None:
        """A storage is used."""
        self._follow(Event(True, index, size))

    def drop(self, index: int) -> None:
        """A storage is not needed any more."""
        if 0 <= index < self._saved:
            self._now.gone.setdefault(index, self.position)

    def discard(self, index: int) -> None:
        """A storage is not needed any more, and its values never were."""
        self.drop(index)
        if 0 <= index < self._saved:
            self._now.unread.add(index)

    def hold(self, indices: Iterable[int]) -> None:
        """The program still has these itself when the backward pass begins."""
        self._now.held.update(index for index in indices if 0 <= index < self._saved)

    def measure(self, program_bytes: int) -> None:
        """The most that the program took of its own since the last event."""
        if self.position:
            most = max(self._now.program_bytes[-1], program_bytes - self._base)
            self._now.program_bytes[-1] = most

    def keep_away(self, size: int) -> None:
        """Stay farther away from the budget by `size` bytes, for there was no room in one piece."""
        self._margin = min(self._margin + size, self._budget // 4)

    def expected(self, position: int | None = None) -> int | None:
        """The most that the program will take of its own, from now on until after an event.

        Args:
            position: Of the event, or None for the one that has just been.

        Returns:
            Bytes, or None if they are not known.
        """
        if self._known is None:
            return None
        now = self.position - 1
        return self._base + self._known.expected(now, now if position is None else position)

    def expected_of_forward(self) -> int | None:
        """The most that the program will take of its own until the backward pass begins.

        What has to leave by then may as well leave at once: what is saved next lies where it was,
        and the most that is taken finds room in one piece.
        """
        now = self.position - 1
        return self._base + self._forward[now] if now < len(self._forward) else self.expected()

    def leaves(self, index: int) -> bool:
        """Whether a storage should start to leave as soon as it is saved."""
        return self._known is not None and index in self._early

    def coming(self, position: int) -> Iterator[tuple[int, int]]:
        """Uses to come, as (position, index), from a position on."""
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
        """The profile that this step resembles, of the smallest batch."""
        resembled = (profile for profile in self._profiles if self._now.resembles(profile))
        return min(resembled, key=lambda profile: profile.events[0].size, default=None)

    def _choose(self, known: Profile) -> set[int]:
        """As many of those that were saved first as have to go.

        Where little is still to go, large ones stay: if it is true, one leaves when it is known.
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
        # From the last event on the optimizer has the card; nothing that is saved is in its way.
        step.program_bytes[-1] = 0
        for profile in self._profiles:
            if profile.events == step.events:
                self._profiles.remove(profile)
                step.follow(profile)
                break
        self._profiles.insert(0, step)
        del self._profiles[_PROFILES:]
