"""Which changes make a script fit for the least time: branch and bound over what each can save.

The script is simulated as it is, then with each change that could matter by itself. What a set of
changes takes is estimated from the largest part of it that was simulated, and what each of the
others saved alone; before that, from the bound that the change itself knows. The set that should
take the least time of all that should fit is simulated next, and what it really takes replaces the
estimate, until nothing that was not tried can be better than the best that fits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Protocol

from plimsoll.fitting.changes.batch import batch_changes
from plimsoll.fitting.changes.compiled import compiled_change, first_budgets, next_budgets
from plimsoll.fitting.changes.jobs import job_changes
from plimsoll.fitting.changes.offloading import offloading_change
from plimsoll.fitting.changes.plain import plain_changes
from plimsoll.fitting.changes.recomputing import recomputing_change
from plimsoll.fitting.plan_parts import LITTLE
from plimsoll.units import MiB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.fitting.attempts import Attempt, Attempts, Changes
    from plimsoll.fitting.changes.change import Change
    from plimsoll.prediction.results import Prediction
    from plimsoll.prediction.survey import AllocatorUse

_SIMULATIONS = 15
_LEAST_SHARE = 0.004  # of the peak: what may save less is not tried
_LEAST_REST = 0.985  # of what the elastic allocator takes is allocated
_PER_CHANGE = 0.005  # of a step: by so much a plan with a change less may be slower
_MOST_TOGETHER = 5
_TIMES_ENOUGH = 0.01
_THIN = 0.02  # of a step: by so much a plan with more to spare may be slower
_MOST_OF_A_KIND = 2
_LEAST_BUDGET = 64 * MiB
_FAR = 0.75  # of what should be saved: where less was, more cannot be asked for
_ALIKE = 0.99
_TURNS = 2
_MOST_BUDGETS = 8
_MEASURED = ("recomputation", "offload")


class Watcher(Protocol):
    """Hears how a search goes on."""

    def begins(self, names: Sequence[str]) -> None:
        """These changes are tried together, by their labels; none is the script as it is."""

    def ended(self, attempt: Attempt) -> None:
        """They were."""


@dataclass(frozen=True)
class _Aim:
    """What a set of changes should allocate at its peak.

    Attributes:
        with_bytes: With all of them.
        without_bytes: Without those that have a measure.
    """

    with_bytes: int
    without_bytes: int


@dataclass(frozen=True)
class Best:
    """A plan that fits.

    Attributes:
        attempt: The changes, and what they take where memory has no end.
        use: The allocator with which they fit.
        verified: What they take under the limit.
    """

    attempt: Attempt
    use: AllocatorUse
    verified: Prediction


class Search:
    """A search.

    Args:
        attempts: What runs the script.
        room: What PyTorch and NCCL may take of the card.
        watcher: Hears of each trial.
        compiles: Whether compiling the model is tried.

    Attributes:
        known: All that was tried, in order.
        best: The best plan so far; None while nothing fits.
    """

    def __init__(
        self, attempts: Attempts, room: int, watcher: Watcher, *, compiles: bool = False
    ) -> None:
        self.known: list[Attempt] = []
        self.best: Best | None = None
        self._attempts = attempts
        self._room = room
        self._watcher = watcher
        self._compiles = compiles
        self._may_simulate = True
        self._compiled: dict[float, Change] = {}
        self._refuted: set[tuple[frozenset[Change], str, str]] = set()
        self._aims: dict[frozenset[Change], _Aim] = {}
        self._margins: dict[frozenset[Change], int] = {}

    @property
    def base(self) -> Attempt:
        """The script as it is."""
        return self.known[0]

    def run(self) -> None:
        """Search until nothing better can be found, or no simulation is left."""
        self._try([()])
        self._take_best()
        if self.best is not None and not self.best.attempt.changes:
            return
        if self._compiles:
            self._sweep_budgets()
        items = list(self._items(keeps_results=True))
        self._try([(change,) for change in items])
        self._try([self._cheap(items)])
        self._branch(items)
        if self.best is None:
            others = list(self._items(keeps_results=False))
            self._try([(change,) for change in others])
            self._branch([*items, *others])
        self._drop_needless()
        self._try_alone()

    def find_range(self) -> None:
        """How far the best plan hangs on data that nobody knows."""
        if self.best is not None:
            attempt, use, verified = self.best.attempt, self.best.use, self.best.verified
            verified = self._attempts.with_range(attempt.changes, use, verified)
            self.best = Best(attempt, use, verified)

    def settle(self) -> None:
        """Take the best of what was tried, without another simulation: after an interrupt."""
        self._may_simulate = False
        self._take_best()

    def _items(self, *, keeps_results: bool) -> Iterator[Change]:
        """Changes without a measure, that could matter."""
        survey, peak = self.base.survey, self.base.allocated_bytes()
        assert survey is not None
        changes = [
            *plain_changes(survey, peak), *job_changes(survey, self._attempts.script),
            *self._compiled.values(),
        ]  # fmt: skip
        for change in changes:
            matters = change.saves_bytes >= _LEAST_SHARE * peak
            if matters and change.keeps_results == keeps_results:
                yield change

    def _sweep_budgets(self) -> None:
        """Compile the model under several budgets, and under others where that may help."""
        survey, peak = self.base.survey, self.base.allocated_bytes()
        assert survey is not None
        budgets = list(first_budgets(survey))
        while budgets and len(self._compiled) < _MOST_BUDGETS:
            for budget in budgets:
                self._compiled[budget] = compiled_change(survey, peak, budget)
            self._try([(self._compiled[budget],) for budget in budgets])
            peaks = {
                budget: attempt.allocated_bytes()
                for budget, change in self._compiled.items()
                if (attempt := self._alone(change)) and attempt.prediction is not None
            }
            budgets = next_budgets(peaks, self._target()) if peaks else []
            budgets = [budget for budget in budgets if budget not in self._compiled]

    def _cheap(self, items: Sequence[Change]) -> Changes:
        """All that takes no time: a peak may be lower only where several things are changed."""
        limit = _TIMES_ENOUGH * 2 * self._seconds(self.base)
        chosen: list[Change] = []
        for change in items:
            alone = self._alone(change)
            is_cheap = alone is not None and alone.prediction and self._slower(change) <= limit
            if is_cheap and _agree((*chosen, change)):
                chosen.append(change)
        return tuple(chosen)

    def _everything(self, items: Sequence[Change]) -> Changes:
        """As much as can be changed together, of what did not fail."""
        chosen: list[Change] = []
        ranked = sorted([*items, *self._parts()], key=lambda each: -each.saves_bytes)
        for change in ranked:
            if self._gain(change) > 0 or self._alone(change) is None:
                chosen += [change] * _agree((*chosen, change))
        for change in items:
            alone = self._alone(change)
            if alone is not None and alone.prediction is not None and change not in chosen:
                chosen += [change] * _agree((*chosen, change))
        return tuple(chosen)

    def _drop_needless(self) -> None:
        """Try the best plan without changes that it may not need, what costs the most first."""
        while self.best is not None and self._left() > 0:
            changes = self.best.attempt.changes
            spare = self._target() - self.best.attempt.allocated_bytes()
            needless = [
                change
                for change in sorted(changes, key=self._slower, reverse=True)
                if self._alone(change) is not None
                and self._gain(change) < max(self._room // 200, spare)
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
        left = [changes for changes in asked if not self._is_known(changes)]
        while left and self._left() > 0:
            now, left = left[:at_a_time], left[at_a_time:]
            for changes in now:
                self._watcher.begins([change.label for change in changes])
            self._attempts.run(now, self._note)

    def _is_known(self, changes: Changes) -> bool:
        """Whether they were tried, or others that nobody could tell from them."""
        names = {change.name for change in changes}
        return any(names == {each.name for each in attempt.changes} for attempt in self.known)

    def _note(self, attempt: Attempt) -> None:
        self.known.append(attempt)
        self._learn(attempt)
        self._watcher.ended(attempt)

    def _left(self) -> int:
        """Simulations, but one to verify what was found."""
        return _SIMULATIONS - 1 - self._attempts.count

    def _branch(self, items: Sequence[Change]) -> None:
        """Try sets of changes, the most promising first; all of them, where these do not fit."""
        turns = 0
        while self._left() > 0:
            self._take_best()
            limit = None if self.best is None else self._cost(self.best.attempt)
            ranked = sorted(self._candidates(items), key=lambda each: each[0])
            better = [
                changes
                for cost, changes in ranked
                if limit is None or cost < limit * (1 - _TIMES_ENOUGH)
            ]
            turns += 1
            if self.best is None and (turns > _TURNS or not better):
                all_of_them = self._all_together(items)
                better = [*all_of_them, *better] if all_of_them else []
            if not better:
                break
            self._try(better[: self._attempts.at_a_time])
        self._take_best()

    def _all_together(self, items: Sequence[Change]) -> list[Changes]:
        """All changes, or these with measured ones, whichever is next; none if nothing is left."""
        everything = self._everything(items)
        if not self._is_known(everything):
            return [everything]
        return [changes for _, changes in sorted(self._candidates_with(everything), key=_first)][:1]

    def _candidates(self, items: Sequence[Change]) -> Iterator[tuple[float, Changes]]:
        """Sets that were not tried and that should fit, with what they should cost."""
        useful = [change for change in [*items, *self._parts()] if self._gain(change) > 0]
        counts = range(min(len(useful), _MOST_TOGETHER) + 1)
        chosen = {frozenset(each): each for count in counts for each in combinations(useful, count)}
        for each in list(chosen.values()):
            for begun in self._together():
                more = (*begun, *[change for change in each if change not in begun])
                chosen.setdefault(frozenset(more), more)
        for each in chosen.values():
            if _agree(each):
                yield from self._candidates_with(each)

    def _candidates_with(self, chosen: Changes) -> Iterator[tuple[float, Changes]]:
        """Those that have some changes, and besides none but measured ones."""
        without = self._estimate(chosen, self._nearest(chosen))[0]
        for changes, allocated, seconds in self._with_measured(chosen):
            is_new = not self._is_known(changes) and _agree(changes)
            if is_new and allocated <= self._target():
                self._aims[frozenset(changes)] = _Aim(allocated, without)
                yield seconds * (1 + _PER_CHANGE * len(changes)), changes

    def _together(self) -> Iterator[Changes]:
        """Sets that save more than their changes alone, where several phases are about as high."""
        for attempt in self.known:
            plain = _plain(attempt.changes)
            if attempt.prediction is not None and len(plain) == len(attempt.changes) > 1:
                saved = self.base.allocated_bytes() - attempt.allocated_bytes()
                if saved > sum(map(self._gain, plain)):
                    yield plain

    def _with_measured(self, chosen: Changes) -> Iterator[tuple[Changes, int, float]]:
        """A set with none or one of the changes that have a measure: how much of it is needed."""
        start = self._nearest(chosen)
        allocated, seconds = self._estimate(chosen, start)
        yield chosen, allocated, seconds
        survey, kinds = start.survey, {change.kind for change in chosen}
        places = self.base.survey  # of the script as it is; those of others are of changed texts
        if allocated <= self._target() or survey is None or len(survey.models) != 1:
            return
        assert places is not None
        if "batch" in kinds - start.kinds:
            return  # what its modules keep then is not known yet
        target = self._target() - self._margin(chosen)
        saved = start.allocated_bytes() - allocated
        enough = self._enough(chosen)
        plans = [] if "recomputation" in enough else survey.models[0].recomputations
        for plan in plans:
            if plan.peak_bytes - saved <= target:
                change = recomputing_change(places, plan, allocated - plan.peak_bytes + saved)
                yield (*chosen, change), plan.peak_bytes - saved, seconds + plan.seconds
                break
        else:
            yield from self._with_both(chosen, allocated, seconds, start, target)
        can_offload = target > _LEAST_BUDGET and self._reach({"offload"}, chosen) <= self._target()
        if "offload" not in enough and can_offload:
            offload = offloading_change(places, target, allocated - target)
            yield (*chosen, offload), target, seconds + offload.costs_seconds

    def _enough(self, chosen: Changes) -> set[str]:
        """The measured changes of which more beside these would not help, or not be needed."""
        found = set()
        for kind in _MEASURED:
            beside = [
                attempt
                for attempt in self.known
                if kind in attempt.kinds
                and {each for each in attempt.changes if each.kind not in _MEASURED} == set(chosen)
            ]
            if len(beside) >= _MOST_OF_A_KIND or any(attempt.fitting() for attempt in beside):
                found.add(kind)
        return found

    def _with_both(
        self, chosen: Changes, allocated: int, seconds: float, start: Attempt, target: int
    ) -> Iterator[tuple[Changes, int, float]]:
        """All that may be computed again, and offload for the rest."""
        survey, saved = start.survey, start.allocated_bytes() - allocated
        assert survey is not None
        plans, places = survey.models[0].recomputations, self.base.survey
        if not plans or places is None or target <= _LEAST_BUDGET:
            return
        if self._reach(set(_MEASURED), chosen) > self._target():
            return
        reach, least = self._reach({"offload"}, chosen), plans[-1].peak_bytes - saved
        if least >= _ALIKE * allocated or min(reach, least) >= _ALIKE * max(reach, least):
            return  # the peak is of something else
        saves = max(0, plans[0].peak_bytes - plans[-1].peak_bytes)
        rest = max(0, allocated - saves - target)
        again = recomputing_change(places, plans[-1], saves)
        offload = offloading_change(places, target, rest)
        cost = seconds + plans[-1].seconds + offload.costs_seconds
        yield (*chosen, again, offload), target, cost

    def _reach(self, kinds: set[str], chosen: Changes) -> int:
        """The least that measured changes of these kinds could come to beside a set; 0 if unknown.

        It is known where they were asked for more than they can save beside a part of the set.
        """
        inside = [
            attempt
            for attempt in self.known
            if attempt.kinds & set(_MEASURED) == kinds
            and set(_plain(attempt.changes)) <= set(chosen)
            and self._is_exhausted(attempt)
        ]
        if not inside:
            return 0
        nearest = max(inside, key=lambda attempt: len(attempt.changes))
        others = set(chosen) - set(nearest.changes)
        return nearest.allocated_bytes() - sum(map(self._gain, others))

    def _is_exhausted(self, attempt: Attempt) -> bool:
        """Whether its measured changes saved nothing, or no more than when less was asked."""
        aim = self._aims.get(frozenset(attempt.changes))
        if aim is None or attempt.prediction is None or attempt.allocated_bytes() <= aim.with_bytes:
            return False
        saved = aim.without_bytes - attempt.allocated_bytes()
        if saved <= _FAR * (aim.without_bytes - aim.with_bytes):
            return True
        beside = set(_plain(attempt.changes))
        return any(
            each.prediction is not None
            and each.kinds == attempt.kinds
            and set(_plain(each.changes)) == beside
            and (other := self._aims.get(frozenset(each.changes))) is not None
            and other.with_bytes > aim.with_bytes
            and each.allocated_bytes() <= attempt.allocated_bytes()
            for each in self.known
        )

    def _margin(self, chosen: Changes) -> int:
        """By how much measured changes beside these missed their aim so far."""
        return self._margins.get(frozenset(chosen), 0)

    def _learn(self, attempt: Attempt) -> None:
        """From an attempt that took more than was expected."""
        aim = self._aims.get(frozenset(attempt.changes))
        if aim is None or attempt.prediction is None:
            return
        beside = frozenset(_plain(attempt.changes))
        missed = attempt.allocated_bytes() - aim.with_bytes
        if len(beside) < len(attempt.changes) and missed > 0:
            self._margins[beside] = self._margins.get(beside, 0) + missed

    def _parts(self) -> Iterator[Change]:
        """The batch in parts, with what that should save and cost."""
        survey, prediction = self.base.survey, self.base.prediction
        assert survey is not None
        assert prediction is not None
        varies = self.base.allocated_bytes() - sum(
            use.parameter_bytes + use.gradient_bytes + use.state_bytes for use in survey.optimizers
        )
        step = prediction.step
        parts = 2
        for change in batch_changes(survey, self._attempts.script):
            if change.keeps_results:
                slower = 0.02 * parts * self._seconds(self.base)
                if step is not None:
                    slower = max(slower, parts * step.host_seconds - step.seconds)
                saves = int(max(varies, 0) * (1 - 1 / parts))
                yield replace(change, saves_bytes=saves, costs_seconds=slower)
            parts *= 2

    def _nearest(self, changes: Changes) -> Attempt:
        """The largest part of a set that was simulated."""
        wanted = set(changes)
        inside = [
            attempt
            for attempt in self.known
            if attempt.prediction is not None and set(attempt.changes) <= wanted
        ]
        return max(inside, key=lambda attempt: len(attempt.changes))

    def _estimate(self, changes: Changes, start: Attempt) -> tuple[int, float]:
        """What a set should allocate at its peak, and how long a step should take.

        More than a set does that has all of its changes, and others.
        """
        allocated, seconds = start.allocated_bytes(), self._seconds(start)
        for change in set(changes) - set(start.changes):
            allocated -= self._gain(change)
            seconds += self._slower(change)
        more = [
            attempt.allocated_bytes()
            for attempt in self.known
            if attempt.prediction is not None and set(changes) < set(attempt.changes)
        ]
        return max([allocated, *more]), max(seconds, 0.0)

    def _alone(self, change: Change) -> Attempt | None:
        return next((each for each in self.known if each.changes == (change,)), None)

    def _gain(self, change: Change) -> int:
        """What a change saves: alone, if that was tried, or at most."""
        alone = self._alone(change)
        if alone is None:
            return change.saves_bytes
        if alone.prediction is None:
            return 0
        return max(0, self.base.allocated_bytes() - alone.allocated_bytes())

    def _slower(self, change: Change) -> float:
        alone = self._alone(change)
        if alone is None or alone.prediction is None:
            return change.costs_seconds
        return self._seconds(alone) - self._seconds(self.base)

    def _seconds(self, attempt: Attempt) -> float:
        """Of a step; where that is not known, what the changes should cost."""
        if attempt.step_seconds is not None and self.base.step_seconds is not None:
            return attempt.step_seconds
        start = self.base.step_seconds or 1.0
        return start + sum(change.costs_seconds for change in attempt.changes)

    def _cost(self, attempt: Attempt) -> float:
        return self._seconds(attempt) * (1 + _PER_CHANGE * len(attempt.changes))

    def _price(self, attempt: Attempt, use: AllocatorUse) -> float:
        """What it costs, and more where little is left or cached memory has to go back.

        On a GPU other workspaces, or another pace, may then be enough for it not to fit.
        """
        most = (1 - LITTLE) * self._room
        is_thin = use.peak_reserved_bytes + attempt.nccl_bytes > most
        return self._cost(attempt) * (1 + _THIN * is_thin)

    def _target(self) -> int:
        """What may be allocated, with the allocator that wastes the least."""
        return int((self._room - self.base.nccl_bytes) * _LEAST_REST) - MiB

    def _take_best(self) -> None:
        """Verify the best of what was tried, and what is next best where it does not hold."""
        while True:
            found = self._best_tried()
            if found is None:
                return
            attempt, use = found
            best = self.best
            if best and self._price(best.attempt, best.use) <= self._price(attempt, use):
                return
            verified = self._verified(attempt, use)
            if verified is not None and verified.fits:
                self.best = Best(attempt, use, verified)
                return
            self._refuted.add((frozenset(attempt.changes), use.allocator, use.conf))

    def _verified(self, attempt: Attempt, use: AllocatorUse) -> Prediction | None:
        """What it takes under the limit; where that changes nothing, what it took without."""
        own = attempt.allocators()[0]
        if use == own and use.peak_reserved_bytes + attempt.nccl_bytes <= self._room:
            return attempt.prediction
        if not self._may_simulate or self._attempts.count >= _SIMULATIONS:
            return None
        return self._attempts.verify(attempt.changes, use)

    def _best_tried(self) -> tuple[Attempt, AllocatorUse] | None:
        """Of what fits: results as they were before others, then the least time."""
        fitting = [
            (attempt, use)
            for attempt in self.known
            for use in attempt.allocators()
            if use.fits
            and (frozenset(attempt.changes), use.allocator, use.conf) not in self._refuted
        ]

        def rank(found: tuple[Attempt, AllocatorUse]) -> tuple[bool, float, int]:
            attempt, use = found
            keeps = all(change.keeps_results for change in attempt.changes)
            return not keeps, self._price(attempt, use), attempt.allocators().index(use)

        return min(fitting, key=rank, default=None)

    def _try_alone(self) -> None:
        """With what is left: what the other kinds of change do by themselves."""
        done = {attempt.changes[0].kind for attempt in self.known if len(attempt.changes) == 1}
        alone: dict[str, Changes] = {}
        for changes, _, _ in self._with_measured(()):
            for change in changes:
                alone.setdefault(change.kind, changes)
        for change in self._parts():
            alone.setdefault(change.kind, (change,))
        for change in self._items(keeps_results=False):
            alone.setdefault(change.name, (change,))
        self._try([changes for changes in alone.values() if changes[0].kind not in done])
        self._take_best()


def _first(candidate: tuple[float, Changes]) -> float:
    return candidate[0]


def _plain(changes: Changes) -> Changes:
    """Those that have no measure."""
    return tuple(change for change in changes if change.kind not in _MEASURED)


def _agree(changes: Changes) -> bool:
    """Whether changes can be made together."""
    kinds = [change.kind for change in changes]
    if len(set(kinds)) < len(kinds):
        return False
    return not any(change.excludes & set(kinds) for change in changes)
