"""Finds the changes with which a script fits and its steps are fastest, by branch and bound.

The search simulates the unchanged script, then each single change that could matter. Then it
estimates the memory of sets of changes. The estimate starts with the memory of the set's largest
simulated subset. For each other change in the set, the search subtracts the bytes that the change
saved alone. If the change was not simulated alone, the search subtracts the most that it can save.
The search simulates the fastest set whose estimate fits, and replaces the estimate by the result.
The search ends when no untried set can be better than the best set that fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from plimsoll.prediction.fitting.changes import compiled
from plimsoll.prediction.fitting.known_sets import Known
from plimsoll.prediction.fitting.sets_to_try import ENOUGH, Sets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plimsoll.prediction.fitting.attempts import Attempt, Attempts, Changes
    from plimsoll.prediction.fitting.changes.change import Change
    from plimsoll.prediction.results import Prediction
    from plimsoll.prediction.survey import AllocatorUse

ROOMY = 0.05
"""The best plan is tight if it leaves less than this share of the card's memory free.

The search then prefers a change of the script's own options if that leaves more memory free.
"""
MOST_SIMULATIONS = 15
"""The most simulations of a search, including the one that verifies the plan."""
_TURNS = 2
_MOST_BUDGETS = 8


class Watcher(Protocol):
    """Gets the progress of a search."""

    def begins(self, names: Sequence[str]) -> None:
        """Called when a trial begins.

        Args:
            names: The labels of the trial's changes; empty for the unchanged script.
        """

    def ended(self, attempt: Attempt) -> None:
        """Called when a trial has ended."""


@dataclass(frozen=True)
class Best:
    """A plan that fits.

    Attributes:
        attempt: The attempt with the plan's changes, run with unlimited memory.
        use: The allocator with which the changed script fits.
        verified: The prediction under the limit.
    """

    attempt: Attempt
    use: AllocatorUse
    verified: Prediction


class Search:
    """A search for the changes with which a script fits a card.

    Args:
        attempts: Runs the script with sets of changes.
        room: The memory of the card for PyTorch and NCCL.
        watcher: Called when each trial begins and ends.
        compiles: Whether the search tries to compile the model.

    Attributes:
        best: The best plan so far; None until an attempt fits.
    """

    def __init__(
        self, attempts: Attempts, room: int, watcher: Watcher, *, compiles: bool = False
    ) -> None:
        self.best: Best | None = None
        self._attempts = attempts
        self._room = room
        self._watcher = watcher
        self._compiles = compiles
        self._may_simulate = True
        self._compiled: dict[float, Change] = {}
        self._refuted: set[tuple[frozenset[Change], str, str]] = set()
        self._known = Known(room)
        self._sets = Sets(self._known, attempts.script)

    @property
    def known(self) -> list[Attempt]:
        """All attempts, in the order in which they were made."""
        return self._known.attempts

    @property
    def base(self) -> Attempt:
        """The attempt with the unchanged script."""
        return self._known.base

    def run(self, *, prefers_own: bool = False) -> None:
        """Searches until no set can be better, or no simulation is left.

        Args:
            prefers_own: Whether to call `prefer_own_options` at the end.
        """
        self._try([()])
        self._take_best()
        if self.best is not None and not self.best.attempt.changes:
            return
        if self._compiles:
            self._sweep_budgets()
        items = list(self._sets.items(keeps_results=True))
        self._try([(change,) for change in items])
        self._try([self._sets.cheap(items)])
        self._branch(items)
        if self.best is None:
            others = list(self._sets.items(keeps_results=False))
            self._try([(change,) for change in others])
            self._branch([*items, *others])
        if self.best is None:
            self._try([(change,) for change in self._sets.less_data()])
            self._take_best()
        self._drop_needless()
        if self.best is None:
            self._find_floor()
        self._try_alone()
        if prefers_own:
            self.prefer_own_options()

    def _find_floor(self) -> None:
        """Simulates the attempt that needs the least memory, if this memory is only an estimate.

        The attempt may need the least memory under an allocator that it did not run under. Then
        its memory is an estimate, from a replay of its requests. So plimsoll simulates the attempt
        again, under that allocator.
        """
        least = min(
            (each for each in self.known if each.prediction is not None),
            key=lambda attempt: attempt.least_bytes(),
        )
        use = least.least_use()
        is_replayed = use != least.allocators()[0]
        if is_replayed and use.least_bytes is not None and self._attempts.count < MOST_SIMULATIONS:
            self._known.replace(least, self._attempts.with_least_of(least, use))

    def find_range(self) -> None:
        """Adds the range of memory to the best plan, if the memory depends on unknown data."""
        if self.best is not None:
            attempt, use, verified = self.best.attempt, self.best.use, self.best.verified
            verified = self._attempts.with_range(attempt.changes, use, verified)
            self.best = Best(attempt, use, verified)

    def prefer_own_options(self) -> None:
        """If the best plan is tight (see `ROOMY`), replaces it by a plan that only sets options.

        The new plan sets options of the script and changes no line. It leaves room for variations
        between runs and drivers.
        """
        best = self.best
        if best is None or self._is_roomy(best.attempt, best.use):
            return
        own = [
            (attempt, use)
            for attempt in self.known
            for use in self.uses(attempt)[:1]
            if attempt.changes
            and all(each.is_of_options and each.keeps_results for each in attempt.changes)
            and use == attempt.allocators()[0]
            and self._is_roomy(attempt, use)
        ]
        for attempt, use in sorted(own, key=lambda found: self._known.cost(found[0])):
            verified = self._verified(attempt, use)
            if verified is not None and verified.fits:
                self.best = Best(attempt, use, verified)
                return

    def _is_roomy(self, attempt: Attempt, use: AllocatorUse) -> bool:
        taken = use.peak_reserved_bytes + attempt.nccl_bytes
        return taken <= (1 - ROOMY) * self._room

    def settle(self) -> None:
        """Ends the search after an interrupt. The best attempt so far becomes the plan."""
        self._may_simulate = False
        self._take_best()

    def fits(self, attempt: Attempt) -> bool:
        """Returns whether an attempt fits with at least one allocator.

        An allocator does not count if the attempt failed with it in a run under the memory limit.
        """
        return bool(self.uses(attempt))

    def _sweep_budgets(self) -> None:
        """Tries to compile the model with some activation budgets, then with others in between."""
        survey, peak = self.base.survey, self.base.allocated_bytes()
        assert survey is not None
        budgets = list(compiled.first_budgets(survey))
        while budgets and len(self._compiled) < _MOST_BUDGETS:
            for budget in budgets:
                self._compiled[budget] = compiled.compiled_change(survey, peak, budget)
            self._sets.further = list(self._compiled.values())
            self._try([(self._compiled[budget],) for budget in budgets])
            peaks = {
                budget: attempt.allocated_bytes()
                for budget, change in self._compiled.items()
                if (attempt := self._known.alone(change)) and attempt.prediction is not None
            }
            budgets = compiled.next_budgets(peaks, self._known.target()) if peaks else []
            budgets = [budget for budget in budgets if budget not in self._compiled]

    def _drop_needless(self) -> None:
        """Tries to remove possibly unnecessary changes from the best plan, the slowest first."""
        while self.best is not None and self._left() > 0:
            changes = self.best.attempt.changes
            spare = self._known.target() - self.best.attempt.allocated_bytes()
            needless = [
                change
                for change in sorted(changes, key=self._known.slower, reverse=True)
                if self._known.alone(change) is not None
                and self._known.gain(change) < max(self._room // 200, spare)
            ]
            less = [tuple(each for each in changes if each != change) for change in needless]
            before = len(self.known)
            self._try(less[: self._attempts.at_a_time])
            self._take_best()
            if len(self.known) == before or self.best.attempt.changes == changes:
                return

    def _try(self, sets: Sequence[Changes]) -> None:
        at_a_time = self._attempts.at_a_time
        asked = {frozenset(each.name for each in changes): changes for changes in sets}.values()
        left = [changes for changes in asked if not self._known.is_known(changes)]
        while left and self._left() > 0:
            now, left = left[:at_a_time], left[at_a_time:]
            for changes in now:
                self._watcher.begins([change.label for change in changes])
            self._attempts.run(now, self._note)

    def _note(self, attempt: Attempt) -> None:
        self._known.add(attempt)
        self._watcher.ended(attempt)

    def _left(self) -> int:
        """Returns the number of simulations left, without the one that verifies the plan."""
        return MOST_SIMULATIONS - 1 - self._attempts.count

    def _branch(self, items: Sequence[Change]) -> None:
        """Tries sets of changes, the most promising first.

        If none fits, tries one set of all changes that can be combined.
        """
        turns = 0
        while self._left() > 0:
            self._take_best()
            limit = self._best_price()
            ranked = sorted(self._sets.fitting(items), key=lambda each: each[0])
            better = [
                changes for cost, changes in ranked if limit is None or cost < limit * (1 - ENOUGH)
            ]
            turns += 1
            if self.best is None and (turns > _TURNS or not better):
                all_of_them = self._sets.all_together(items)
                better = [*all_of_them, *better] if all_of_them else []
            if not better:
                break
            self._try(better[: self._attempts.at_a_time])
        self._take_best()

    def _take_best(self) -> None:
        """Runs the attempts with the memory limit, the best first, until one fits."""
        while True:
            found = self._best_tried()
            if found is None:
                return
            attempt, use = found
            price = self._best_price()
            if price is not None and price <= self._known.price(attempt, use):
                return
            verified = self._verified(attempt, use)
            if verified is not None and verified.fits:
                self.best = Best(attempt, use, verified)
                return
            self._refuted.add((frozenset(attempt.changes), use.allocator, use.conf))

    def _best_price(self) -> float | None:
        best = self.best
        return None if best is None else self._known.price(best.attempt, best.use)

    def _verified(self, attempt: Attempt, use: AllocatorUse) -> Prediction | None:
        """Returns the prediction under the limit; None if no simulation is left.

        If the limit cannot change the attempt's run, this returns the attempt's own prediction.
        """
        own = attempt.allocators()[0]
        assert attempt.prediction is not None
        is_alone = not attempt.prediction.shared_cards
        if use == own and is_alone and use.peak_reserved_bytes + attempt.nccl_bytes <= self._room:
            return attempt.prediction
        if not self._may_simulate or self._attempts.count >= MOST_SIMULATIONS:
            return None
        return self._attempts.verify(attempt.changes, use)

    def _best_tried(self) -> tuple[Attempt, AllocatorUse] | None:
        """Returns the fastest attempt that fits, preferring those that keep the results."""
        fitting = [(attempt, use) for attempt in self.known for use in self.uses(attempt)]

        def rank(found: tuple[Attempt, AllocatorUse]) -> tuple[bool, float, int]:
            attempt, use = found
            keeps = all(change.keeps_results for change in attempt.changes)
            uses = [use]
            if not attempt.changes and use.allocator == "native" and use.conf:
                # A setting of PyTorch's needs nothing installed, so an unchanged script gets it
                # even if plimsoll's allocator leaves more memory free.
                uses = self.uses(attempt)
            price = min(self._known.price(attempt, each) for each in uses)
            return not keeps, price, attempt.allocators().index(use)

        return min(fitting, key=rank, default=None)

    def uses(self, attempt: Attempt) -> list[AllocatorUse]:
        """Returns the allocators with which an attempt fits and has not failed under the limit."""
        return [
            use
            for use in attempt.allocators()
            if use.fits
            and (frozenset(attempt.changes), use.allocator, use.conf) not in self._refuted
        ]

    def _try_alone(self) -> None:
        """Spends the remaining simulations on single changes of kinds that were not tried alone."""
        done = {attempt.changes[0].kind for attempt in self.known if len(attempt.changes) == 1}
        alone: dict[str, Changes] = {}
        for changes, _, _ in self._sets.with_measured(()):
            for change in changes:
                alone.setdefault(change.kind, changes)
        for change in self._sets.parts():
            alone.setdefault(change.kind, (change,))
        for change in self._sets.items(keeps_results=False):
            alone.setdefault(change.name, (change,))
        self._try([changes for changes in alone.values() if changes[0].kind not in done])
        self._take_best()
