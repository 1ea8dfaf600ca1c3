"""Chooses sets of changes that are worth a trial."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from operator import itemgetter
from typing import TYPE_CHECKING

from plimsoll.base.units import MiB
from plimsoll.prediction.fitting.changes.batch import batch_changes
from plimsoll.prediction.fitting.changes.jobs import job_changes
from plimsoll.prediction.fitting.changes.offloading import offloading_change
from plimsoll.prediction.fitting.changes.plain import plain_changes
from plimsoll.prediction.fitting.changes.recomputing import recomputing_change
from plimsoll.prediction.fitting.changes.smaller_batch import smaller_batch_changes
from plimsoll.prediction.fitting.known_sets import MEASURED, PER_CHANGE, agree, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.prediction.fitting.attempts import Attempt, Changes
    from plimsoll.prediction.fitting.changes.change import Change
    from plimsoll.prediction.fitting.known_sets import Known
    from plimsoll.prediction.fitting.script_text import ScriptText

_LESS_DATA = ("smaller batch", "shorter samples")
_LEAST_SHARE = 0.004  # a change that can save no more than this share of the peak is not tried
_MOST_TOGETHER = 5
_MOST_OF_A_KIND = 2
_LEAST_BUDGET = 64 * MiB
_ALIKE = 0.99
ENOUGH = 0.01
"""Step times that differ by less than this share are taken as equal."""


class Sets:
    """Combines changes into sets. `known_sets.MEASURED` says which changes are called measured.

    Args:
        known: The attempts so far.
        script: The script.

    Attributes:
        further: Changes that `items` yields besides those that it finds itself. The search puts
            compiled variants of the model here.
    """

    def __init__(self, known: Known, script: ScriptText) -> None:
        self.further: list[Change] = []
        self._known = known
        self._script = script

    def items(self, *, keeps_results: bool) -> Iterator[Change]:
        """Yields the changes that could matter, except measured ones and those of `less_data`."""
        survey, peak = self._known.base.survey, self._known.base.allocated_bytes()
        assert survey is not None
        changes = [
            *plain_changes(survey, peak), *job_changes(survey, self._script),
            *smaller_batch_changes(survey, peak, self._script),
            *self.further,
        ]  # fmt: skip
        for change in changes:
            matters = change.saves_bytes >= _LEAST_SHARE * peak
            if matters and change.keeps_results == keeps_results and change.kind not in _LESS_DATA:
                yield change

    def less_data(self) -> Iterator[Change]:
        """Yields smaller batches and shorter samples. They are tried last."""
        survey, peak = self._known.base.survey, self._known.base.allocated_bytes()
        assert survey is not None
        yield from smaller_batch_changes(survey, peak, self._script)
        yield from (each for each in plain_changes(survey, peak) if each.kind in _LESS_DATA)

    def parts(self) -> Iterator[Change]:
        """Yields changes that split the batch into parts, with their expected saving and cost."""
        survey, prediction = self._known.base.survey, self._known.base.prediction
        assert survey is not None
        assert prediction is not None
        varies = self._known.base.allocated_bytes() - sum(
            use.parameter_bytes + use.gradient_bytes + use.state_bytes for use in survey.optimizers
        )
        step = prediction.step
        parts = 2
        for change in batch_changes(survey, self._script):
            if change.keeps_results:
                slower = 0.02 * parts * self._known.seconds(self._known.base)
                if step is not None:
                    slower = max(slower, parts * step.host_seconds - step.seconds)
                saves = int(max(varies, 0) * (1 - 1 / parts))
                yield replace(change, saves_bytes=saves, costs_seconds=slower)
            parts *= 2

    def cheap(self, items: Sequence[Change]) -> Changes:
        """Returns one set of all changes that cost no time.

        Some peaks fall only if several changes are made together.
        """
        limit = ENOUGH * 2 * self._known.seconds(self._known.base)
        chosen: list[Change] = []
        for change in items:
            alone = self._known.alone(change)
            is_cheap = (
                alone is not None and alone.prediction and self._known.slower(change) <= limit
            )
            if is_cheap and agree((*chosen, change)):
                chosen.append(change)
        return tuple(chosen)

    def fitting(self, items: Sequence[Change]) -> Iterator[tuple[float, Changes]]:
        """Yields untried sets that should fit, each as a pair of its expected cost and the set."""
        useful = [change for change in [*items, *self.parts()] if self._helps(change)]
        counts = range(min(len(useful), _MOST_TOGETHER) + 1)
        chosen = {frozenset(each): each for count in counts for each in combinations(useful, count)}
        for each in list(chosen.values()):
            for begun in self._together():
                more = (*begun, *[change for change in each if change not in begun])
                chosen.setdefault(frozenset(more), more)
        for each in chosen.values():
            if agree(each):
                yield from self._candidates_with(each)

    def _helps(self, change: Change) -> bool:
        """Returns whether a change saves memory or time."""
        faster = -self._known.slower(change) > ENOUGH * self._known.seconds(self._known.base)
        return self._known.gain(change) > 0 or (faster and not self._failed(change))

    def _failed(self, change: Change) -> bool:
        alone = self._known.alone(change)
        return alone is not None and alone.prediction is None

    def all_together(self, items: Sequence[Change]) -> list[Changes]:
        """Returns a list of one set: all changes that can be combined and did not fail alone.

        If plimsoll has tried this set, adds measured changes to it. Returns the resulting set that
        is untried, should fit and has the lowest expected cost. If there is no such set, the list
        is empty.
        """
        everything = self._everything(items)
        if not self._known.is_known(everything):
            return [everything]
        return [
            changes for _, changes in sorted(self._candidates_with(everything), key=itemgetter(0))
        ][:1]

    def with_measured(self, chosen: Changes) -> Iterator[tuple[Changes, int, float]]:
        """Yields `chosen`, and `chosen` with each measured change that should make it fit.

        Each set comes with its estimated peak and time. A measured change recomputes or offloads
        only as much as the set needs to fit.
        """
        start = self._known.nearest(chosen)
        allocated, seconds = self._known.estimate(chosen, start)
        yield chosen, allocated, seconds
        survey, kinds = start.survey, {change.kind for change in chosen}
        # A change refers to lines of the unchanged script, so it needs the survey of that script.
        places = self._known.base.survey
        if allocated <= self._known.target() or survey is None or len(survey.models) != 1:
            return
        assert places is not None
        if "batch" in kinds - start.kinds:
            # `chosen` divides the batch, but `start` ran with the whole batch. So the survey of
            # `start` does not tell how much memory the activations of one part take.
            return
        target = self._known.target() - self._known.margin(chosen)
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
        can_offload = (
            target > _LEAST_BUDGET
            and self._known.reach({"offload"}, chosen) <= self._known.target()
        )
        if "offload" not in enough and can_offload:
            offload = offloading_change(places, target, allocated - target)
            yield (*chosen, offload), target, seconds + offload.costs_seconds

    def _everything(self, items: Sequence[Change]) -> Changes:
        """Returns as many changes as can be combined, without those that failed when alone."""
        chosen: list[Change] = []
        ranked = sorted([*items, *self.parts()], key=lambda each: -each.saves_bytes)
        for change in ranked:
            if self._known.gain(change) > 0 or self._known.alone(change) is None:
                chosen += [change] * agree((*chosen, change))
        for change in items:
            alone = self._known.alone(change)
            if alone is not None and alone.prediction is not None and change not in chosen:
                chosen += [change] * agree((*chosen, change))
        return tuple(chosen)

    def _candidates_with(self, chosen: Changes) -> Iterator[tuple[float, Changes]]:
        """Yields untried sets of `with_measured` that should fit, as pairs of cost and set."""
        without = self._known.estimate(chosen, self._known.nearest(chosen))[0]
        for changes, allocated, seconds in self.with_measured(chosen):
            is_new = not self._known.is_known(changes) and agree(changes)
            if is_new and allocated <= self._known.target():
                self._known.aim(changes, allocated, without)
                yield seconds * (1 + PER_CHANGE * len(changes)), changes

    def _together(self) -> Iterator[Changes]:
        """Yields each tried set that saved more than the sum of its changes' own savings.

        This happens if several phases of a step have about the same peak. Sets with measured
        changes are left out.
        """
        for attempt in self._known.attempts:
            changes = plain(attempt.changes)
            if attempt.prediction is not None and len(changes) == len(attempt.changes) > 1:
                saved = self._known.base.allocated_bytes() - attempt.allocated_bytes()
                if saved > sum(map(self._known.gain, changes)):
                    yield changes

    def _enough(self, chosen: Changes) -> set[str]:
        """Returns the kinds of measured change that need no further try with `chosen`.

        A kind needs none if `chosen` fitted with a change of this kind, or if several changes of
        this kind were tried with `chosen`.
        """
        found = set()
        for kind in MEASURED:
            beside = [
                attempt
                for attempt in self._known.attempts
                if kind in attempt.kinds
                and {each for each in attempt.changes if each.kind not in MEASURED} == set(chosen)
            ]
            if len(beside) >= _MOST_OF_A_KIND or any(attempt.fitting() for attempt in beside):
                found.add(kind)
        return found

    def _with_both(
        self, chosen: Changes, allocated: int, seconds: float, start: Attempt, target: int
    ) -> Iterator[tuple[Changes, int, float]]:
        """Yields `chosen` with recomputation and offloading, or nothing if they cannot help.

        The set recomputes as much as possible, and offloads only the bytes that still exceed the
        target.
        """
        survey, saved = start.survey, start.allocated_bytes() - allocated
        assert survey is not None
        plans, places = survey.models[0].recomputations, self._known.base.survey
        if not plans or places is None or target <= _LEAST_BUDGET:
            return
        if self._known.reach(set(MEASURED), chosen) > self._known.target():
            return
        reach, least = self._known.reach({"offload"}, chosen), plans[-1].peak_bytes - saved
        if least >= _ALIKE * allocated or min(reach, least) >= _ALIKE * max(reach, least):
            # Recomputation alone hardly lowers the peak, or it reaches the same peak as offloading
            # alone. So the rest of the peak does not come from saved tensors, and recomputation
            # and offloading together would not lower it.
            return
        saves = max(0, plans[0].peak_bytes - plans[-1].peak_bytes)
        rest = max(0, allocated - saves - target)
        again = recomputing_change(places, plans[-1], saves)
        offload = offloading_change(places, target, rest)
        cost = seconds + plans[-1].seconds + offload.costs_seconds
        yield (*chosen, again, offload), target, cost
