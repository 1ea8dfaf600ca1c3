"""The memory and time that a script takes with sets of changes, from attempts or estimates.

To estimate a set, plimsoll starts with the peak of an attempt: the one with the largest tried
subset of the set. For each other change in the set, plimsoll subtracts the bytes that this change
saved when it was tried alone. If it was not tried alone, plimsoll subtracts the most that the
change can save.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plimsoll.base.units import MiB
from plimsoll.prediction.little_room import LITTLE

if TYPE_CHECKING:
    from plimsoll.prediction.fitting.attempts import Attempt, Changes
    from plimsoll.prediction.fitting.changes.change import Change
    from plimsoll.prediction.survey import AllocatorUse

MEASURED = ("recomputation", "offload")
"""Kinds of change that come in degrees: how many modules to recompute, which tensors to offload.

Comments and names below call these changes measured.
"""
_LEAST_REST = 0.985  # the share of its reserved memory that the elastic allocator fills
PER_CHANGE = 0.005
"""A plan with one change fewer is preferred if its step is slower by no more than this share."""
# In the ranking, a plan that fills or almost fills the GPU costs more by this share.
_THIN = 0.02
# If measured changes save at most this share of what they were chosen to save, plimsoll assumes
# that they can save no more.
_FAR = 0.75


@dataclass(frozen=True)
class _Aim:
    """The peak that a set of changes should reach by its measured changes.

    Attributes:
        with_bytes: The wanted peak with all changes of the set.
        without_bytes: The peak without the set's measured changes.
    """

    with_bytes: int
    without_bytes: int


class Known:
    """All attempts, and the estimates that follow from them.

    Args:
        room: How many bytes of the card's memory PyTorch and NCCL may take together.

    Attributes:
        attempts: All attempts, in order; the first is the unchanged script.
    """

    def __init__(self, room: int) -> None:
        self.attempts: list[Attempt] = []
        self._room = room
        self._aims: dict[frozenset[Change], _Aim] = {}
        self._margins: dict[frozenset[Change], int] = {}

    def add(self, attempt: Attempt) -> None:
        """Adds an attempt."""
        self.attempts.append(attempt)
        self._learn(attempt)

    def replace(self, attempt: Attempt, by: Attempt) -> None:
        """Replaces an attempt by one with the same changes and the figures of another run."""
        self.attempts[self.attempts.index(attempt)] = by

    def aim(self, changes: Changes, with_bytes: int, without_bytes: int) -> None:
        """Notes which peak a set of changes should reach.

        Args:
            changes: The set.
            with_bytes: The peak that is wanted with the whole set.
            without_bytes: The peak without the set's measured changes.
        """
        self._aims[frozenset(changes)] = _Aim(with_bytes, without_bytes)

    @property
    def base(self) -> Attempt:
        """The attempt with the unchanged script."""
        return self.attempts[0]

    def is_known(self, changes: Changes) -> bool:
        """Returns whether exactly these changes, by name, were tried together."""
        names = {change.name for change in changes}
        return any(names == {each.name for each in attempt.changes} for attempt in self.attempts)

    def nearest(self, changes: Changes) -> Attempt:
        """Returns the successful attempt with the most of these changes and no other change."""
        wanted = set(changes)
        inside = [
            attempt
            for attempt in self.attempts
            if attempt.prediction is not None and set(attempt.changes) <= wanted
        ]
        return max(inside, key=lambda attempt: len(attempt.changes))

    def estimate(self, changes: Changes, start: Attempt) -> tuple[int, float]:
        """Estimates the peak and the step time of a set of changes.

        The estimate begins with the attempt `start`, which had some of the set's changes. If
        another attempt had all of the set's changes and more, the estimated peak is no lower than
        that attempt's peak.
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
        """Returns the attempt with only this change; None if there was none."""
        return next((each for each in self.attempts if each.changes == (change,)), None)

    def gain(self, change: Change) -> int:
        """Returns the bytes that a change saved when tried alone, or else the most it can save."""
        alone = self.alone(change)
        if alone is None:
            return change.saves_bytes
        if alone.prediction is None:
            return 0
        return max(0, self.base.allocated_bytes() - alone.allocated_bytes())

    def slower(self, change: Change) -> float:
        """Returns the seconds that a change tried alone added to a step, or else an estimate."""
        alone = self.alone(change)
        if alone is None or alone.prediction is None:
            return change.costs_seconds
        return self.seconds(alone) - self.seconds(self.base)

    def seconds(self, attempt: Attempt) -> float:
        """Returns the time of an attempt's step, or an estimate from the attempt's changes."""
        if attempt.step_seconds is not None and self.base.step_seconds is not None:
            return attempt.step_seconds
        start = self.base.step_seconds or 1.0
        return start + sum(change.costs_seconds for change in attempt.changes)

    def cost(self, attempt: Attempt) -> float:
        """Returns the number by which plans are ranked: a step's time, raised for each change."""
        return self.seconds(attempt) * (1 + PER_CHANGE * len(attempt.changes))

    def price(self, attempt: Attempt, use: AllocatorUse) -> float:
        """Returns the cost of an attempt, raised if the GPU is full or almost full.

        If the GPU is full, PyTorch must release cached memory to continue. Such an attempt may not
        fit a real GPU, because the workspaces and the speed of the host may differ there.
        """
        most = (1 - LITTLE) * self._room
        is_thin = use.peak_reserved_bytes + attempt.nccl_bytes > most
        return self.cost(attempt) * (1 + _THIN * is_thin)

    def target(self) -> int:
        """Returns the highest allocated peak that fits under the elastic allocator."""
        return int((self._room - self.base.nccl_bytes) * _LEAST_REST) - MiB

    def margin(self, chosen: Changes) -> int:
        """Returns the sum of the bytes by which attempts have exceeded their wanted peaks.

        An attempt counts only if it has all changes of `chosen`, one or more measured changes, and
        no other change.
        """
        return self._margins.get(frozenset(chosen), 0)

    def reach(self, kinds: set[str], chosen: Changes) -> int:
        """Returns the lowest peak that `chosen` can reach with measured changes of these kinds.

        plimsoll starts with the peak of an attempt. The attempt's measured changes are of exactly
        these kinds, and seem to save all that they can. Its other changes are all in `chosen`. From
        this peak plimsoll subtracts what the rest of `chosen` saves. Returns 0 (no bound) if there
        is no such attempt.
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
        """Returns whether the attempt's measured changes seem to save as much as they ever can."""
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
        """Adds to the margins the bytes by which an attempt missed its aim."""
        aim = self._aims.get(frozenset(attempt.changes))
        if aim is None or attempt.prediction is None:
            return
        beside = frozenset(plain(attempt.changes))
        missed = attempt.allocated_bytes() - aim.with_bytes
        if len(beside) < len(attempt.changes) and missed > 0:
            self._margins[beside] = self._margins.get(beside, 0) + missed


def plain(changes: Changes) -> Changes:
    """Returns the changes that are not of a kind in `MEASURED`."""
    return tuple(change for change in changes if change.kind not in MEASURED)


def agree(changes: Changes) -> bool:
    """Returns whether changes can be combined: all kinds differ, and no change excludes another."""
    kinds = [change.kind for change in changes]
    if len(set(kinds)) < len(kinds):
        return False
    return not any(change.excludes & set(kinds) for change in changes)
