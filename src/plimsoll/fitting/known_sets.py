"""What sets of changes take and cost: of those that were tried, what was found, else an estimate.

What a set takes is estimated from the largest part of it that was tried, and what each of the
others saved alone; before that, from the bound that the change itself knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.fitting.headroom import LITTLE
from plimsoll.units import MiB

if TYPE_CHECKING:
    from plimsoll.fitting.attempts import Attempt, Changes
    from plimsoll.fitting.changes.change import Change
    from plimsoll.prediction.survey import AllocatorUse

MEASURED = ("recomputation", "offload")
"""Kinds of change that have a measure: how many modules, above how many bytes."""
_LEAST_REST = 0.985  # of what the elastic allocator takes is allocated
PER_CHANGE = 0.005
"""Of a step: by so much a plan with a change less may be slower."""
_THIN = 0.02  # of a step: by so much a plan with more to spare may be slower
_FAR = 0.75  # of what should be saved: where less was, more cannot be asked for


@dataclass(frozen=True)
class _Aim:
    """What a set of changes should allocate at its peak.

    Attributes:
        with_bytes: With all of them.
        without_bytes: Without those that have a measure.
    """

    with_bytes: int
    without_bytes: int


class Known:
    """What was tried, and what follows from it.

    Args:
        room: What PyTorch and NCCL may take of the card.

    Attributes:
        attempts: All that was tried, in order; the first is the script as it is.
    """

    def __init__(self, room: int) -> None:
        self.attempts: list[Attempt] = []
        self._room = room
        self._aims: dict[frozenset[Change], _Aim] = {}
        self._margins: dict[frozenset[Change], int] = {}

    def add(self, attempt: Attempt) -> None:
        """Something was tried."""
        self.attempts.append(attempt)
        self._learn(attempt)

    def replace(self, attempt: Attempt, by: Attempt) -> None:
        """More is known of an attempt."""
        self.attempts[self.attempts.index(attempt)] = by

    def aim(self, changes: Changes, with_bytes: int, without_bytes: int) -> None:
        """Note what a set should allocate: with it, and without its measured changes."""
        self._aims[frozenset(changes)] = _Aim(with_bytes, without_bytes)

    @property
    def base(self) -> Attempt:
        """The script as it is."""
        return self.attempts[0]

    def is_known(self, changes: Changes) -> bool:
        """Whether they were tried, or others that nobody could tell from them."""
        names = {change.name for change in changes}
        return any(names == {each.name for each in attempt.changes} for attempt in self.attempts)

    def nearest(self, changes: Changes) -> Attempt:
        """The largest part of a set that was simulated."""
        wanted = set(changes)
        inside = [
            attempt
            for attempt in self.attempts
            if attempt.prediction is not None and set(attempt.changes) <= wanted
        ]
        return max(inside, key=lambda attempt: len(attempt.changes))

    def estimate(self, changes: Changes, start: Attempt) -> tuple[int, float]:
        """What a set should allocate at its peak, and how long a step should take.

        More than a set does that has all of its changes, and others.
        """
        allocated, seconds = start.allocated_bytes(), self.seconds(start)
        for change in set(changes) - set(start.changes):
            allocated -= self.gain(change)
            seconds += self.slower(change)
        more = [
            attempt.allocated_bytes()
            for attempt in self.attempts
            if attempt.prediction is not None and set(changes) < set(attempt.changes)
        ]
        return max([allocated, *more]), max(seconds, 0.0)

    def alone(self, change: Change) -> Attempt | None:
        """The trial of a change by itself; None where there was none."""
        return next((each for each in self.attempts if each.changes == (change,)), None)

    def gain(self, change: Change) -> int:
        """What a change saves: alone, if that was tried, or at most."""
        alone = self.alone(change)
        if alone is None:
            return change.saves_bytes
        if alone.prediction is None:
            return 0
        return max(0, self.base.allocated_bytes() - alone.allocated_bytes())

    def slower(self, change: Change) -> float:
        """By how many seconds a change makes a step slower: alone, if that was tried."""
        alone = self.alone(change)
        if alone is None or alone.prediction is None:
            return change.costs_seconds
        return self.seconds(alone) - self.seconds(self.base)

    def seconds(self, attempt: Attempt) -> float:
        """Of a step; where that is not known, what the changes should cost."""
        if attempt.step_seconds is not None and self.base.step_seconds is not None:
            return attempt.step_seconds
        start = self.base.step_seconds or 1.0
        return start + sum(change.costs_seconds for change in attempt.changes)

    def cost(self, attempt: Attempt) -> float:
        """What plans are compared by: the seconds of a step, and a little for each change."""
        return self.seconds(attempt) * (1 + PER_CHANGE * len(attempt.changes))

    def price(self, attempt: Attempt, use: AllocatorUse) -> float:
        """What it costs, and more where little is left or cached memory has to go back.

        On a GPU other workspaces, or another pace, may then be enough for it not to fit.
        """
        most = (1 - LITTLE) * self._room
        is_thin = use.peak_reserved_bytes + attempt.nccl_bytes > most
        return self.cost(attempt) * (1 + _THIN * is_thin)

    def target(self) -> int:
        """What may be allocated, with the allocator that wastes the least."""
        return int((self._room - self.base.nccl_bytes) * _LEAST_REST) - MiB

    def margin(self, chosen: Changes) -> int:
        """By how much measured changes beside these missed their aim so far."""
        return self._margins.get(frozenset(chosen), 0)

    def reach(self, kinds: set[str], chosen: Changes) -> int:
        """The least that measured changes of these kinds could come to beside a set; 0 if unknown.

        It is known where they were asked for more than they can save beside a part of the set.
        """
        inside = [
            attempt
            for attempt in self.attempts
            if attempt.kinds & set(MEASURED) == kinds
            and set(plain(attempt.changes)) <= set(chosen)
            and self._is_exhausted(attempt)
        ]
        if not inside:
            return 0
        nearest = max(inside, key=lambda attempt: len(attempt.changes))
        others = set(chosen) - set(nearest.changes)
        return nearest.allocated_bytes() - sum(map(self.gain, others))

    def _is_exhausted(self, attempt: Attempt) -> bool:
        """Whether its measured changes saved nothing, or no more than when less was asked."""
        aim = self._aims.get(frozenset(attempt.changes))
        if aim is None or attempt.prediction is None or attempt.allocated_bytes() <= aim.with_bytes:
            return False
        saved = aim.without_bytes - attempt.allocated_bytes()
        if saved <= _FAR * (aim.without_bytes - aim.with_bytes):
            return True
        beside = set(plain(attempt.changes))
        return any(
            each.prediction is not None
            and each.kinds == attempt.kinds
            and set(plain(each.changes)) == beside
            and (other := self._aims.get(frozenset(each.changes))) is not None
            and other.with_bytes > aim.with_bytes
            and each.allocated_bytes() <= attempt.allocated_bytes()
            for each in self.attempts
        )

    def _learn(self, attempt: Attempt) -> None:
        """From an attempt that took more than was expected."""
        aim = self._aims.get(frozenset(attempt.changes))
        if aim is None or attempt.prediction is None:
            return
        beside = frozenset(plain(attempt.changes))
        missed = attempt.allocated_bytes() - aim.with_bytes
        if len(beside) < len(attempt.changes) and missed > 0:
            self._margins[beside] = self._margins.get(beside, 0) + missed


def plain(changes: Changes) -> Changes:
    """Those that have no measure."""
    return tuple(change for change in changes if change.kind not in MEASURED)


def agree(changes: Changes) -> bool:
    """Whether changes can be made together."""
    kinds = [change.kind for change in changes]
    if len(set(kinds)) < len(kinds):
        return False
    return not any(change.excludes & set(kinds) for change in changes)
