"""A model of a script, for tests of the search over changes. No script runs.

The test gives the numbers: what each change saves, and what it costs. A step has several phases,
each with its live bytes, and the peak is the highest phase. A change saves some bytes in each
phase, so the peak may fall by less than the sum of what several changes save.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from plimsoll.base.units import MiB, parse_size
from plimsoll.prediction.fitting.attempts import Attempt
from plimsoll.prediction.fitting.script_text import ScriptText
from plimsoll.prediction.results import Prediction
from plimsoll.prediction.survey import AllocatorUse, ModelUse, Recomputation, Survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from plimsoll.prediction.fitting.attempts import Changes
    from plimsoll.prediction.fitting.changes.change import Change

CONTEXT = 512 * MiB
_BUS = 25e9
"""Bytes per second between card and host."""
_MEASURED = ("recomputation", "offload")


@dataclass(frozen=True)
class Done:
    """The changes made to a script.

    Attributes:
        names: The changes that are simply on or off.
        again: The number of recomputed modules.
        budget: The budget above which saved tensors move to host memory; None for no offload.
    """

    names: tuple[str, ...] = ()
    again: int = 0
    budget: int | None = None

    @classmethod
    def by(cls, changes: Changes) -> Done:
        """Makes a `Done` from the names of a set of changes."""
        plain = tuple(change.name for change in changes if change.kind not in _MEASURED)
        measured = {change.kind: change.name for change in changes if change.kind in _MEASURED}
        again = measured.get("recomputation", "recompute 0 modules").split()[1]
        _, _, budget = measured.get("offload", "").partition("above ")
        return cls(plain, int(again), parse_size(budget) if budget else None)


@dataclass(frozen=True)
class TinyScript:
    """A script's numbers, and its possible changes.

    Attributes:
        phases: The live bytes in each phase of a step.
        seconds: The time of a step.
        saves: The bytes that each change saves in each phase, by the change's name.
        costs: The time that each change adds to a step, by the change's name.
        modules: The number of the script's equal modules; 0 for none.
        module_bytes: The bytes that each module keeps in the first phase, unless it is recomputed.
        module_seconds: The time to recompute one module.
        movable_bytes: The part of the first phase that can move to host memory.
        waste: The ratio of reserved to allocated memory under PyTorch's allocator. The elastic
            allocator reserves only what is allocated.
        least: The least memory that a replay under the elastic allocator needs, divided by the peak
            of allocated memory.
        least_itself: The same ratio for a run of the script instead of a replay.
    """

    phases: tuple[int, ...]
    seconds: float
    saves: dict[str, tuple[int, ...]]
    costs: dict[str, float]
    modules: int = 0
    module_bytes: int = 0
    module_seconds: float = 0.0
    movable_bytes: int = 0
    waste: float = 1.1
    least: float = 1.0
    least_itself: float = 1.0

    def live(self, done: Done) -> list[int]:
        """Applies the changes `done` and returns the live bytes in each phase."""
        live = list(self.phases)
        for name in done.names:
            live = [size - saved for size, saved in zip(live, self.saves[name], strict=True)]
        live[0] -= done.again * self.module_bytes
        live[0] -= self.moved(live[0], done)
        return [max(size, MiB) for size in live]

    def moved(self, first: int, done: Done) -> int:
        """Returns the bytes of the first phase that move to host memory."""
        if done.budget is None:
            return 0
        kept = 1 - done.again / max(self.modules, 1)
        return min(max(first - done.budget, 0), int(self.movable_bytes * kept))

    def allocated(self, done: Done) -> int:
        """Returns the peak of allocated bytes."""
        return max(self.live(done))

    def step(self, done: Done) -> float:
        """Returns the time of a step."""
        first = self.live(replace(done, budget=None))[0]
        moving = 2 * self.moved(first, done) / _BUS
        own = self.seconds + sum(self.costs[name] for name in done.names)
        return own + done.again * self.module_seconds + moving

    def recomputations(self, done: Done) -> list[Recomputation]:
        """Returns one recomputation for each possible number of further modules."""
        return [
            Recomputation(
                [f"blocks.{number}" for number in range(count)],
                self.allocated(replace(done, again=done.again + count)),
                count * self.module_seconds,
            )
            for count in range(1, self.modules - done.again + 1)
        ]

    def fastest(self, room: int, changes: Sequence[Change]) -> float | None:
        """Tries every set of changes. Returns the shortest time of a step among those that fit."""
        found = [
            self.step(done)
            for names in _sets(changes)
            for again in range(self.modules + 1)
            for budget in (None, room)
            if self.allocated(done := Done(names, again, budget)) <= room
        ]
        return min(found, default=None)


def _sets(changes: Sequence[Change]) -> Iterator[tuple[str, ...]]:
    for count in range(len(changes) + 1):
        for chosen in combinations(changes, count):
            kinds = {change.kind for change in chosen}
            if len(kinds) == count and not any(change.excludes & kinds for change in chosen):
                yield tuple(change.name for change in chosen)


class TinyAttempts:
    """Runs a tiny script, as `Attempts` runs real ones.

    Args:
        script: The script.
        room: The memory that the script may take.
        interrupted_after: The number of runs after which KeyboardInterrupt is raised; None for
            never.
        refuses: Whether `verify` always finds that the changed script does not fit.

    Attributes:
        count: The number of runs.
        ran: The names of the changes of each run.
    """

    at_a_time = 2
    script = ScriptText.of("")

    def __init__(
        self,
        script: TinyScript,
        room: int,
        interrupted_after: int | None = None,
        *,
        refuses: bool = False,
    ) -> None:
        self._script = script
        self._room = room
        self._interrupted_after = interrupted_after
        self._refuses = refuses
        self.count = 0
        self.ran: list[frozenset[str]] = []

    def run(
        self, sets: Sequence[Changes], ended: Callable[[Attempt], None] | None = None
    ) -> list[Attempt]:
        found = [self._attempt(changes) for changes in sets]
        for attempt in found:
            self.count += 1
            self.ran.append(frozenset(change.name for change in attempt.changes))
            if ended is not None:
                ended(attempt)
            self._interrupt()
        return found

    def verify(self, changes: Changes, use: AllocatorUse) -> Prediction:
        self.count += 1
        self._interrupt()
        found = self._prediction(Done.by(changes), use)
        return replace(found, fits=False) if self._refuses else found

    def _interrupt(self) -> None:
        if self.count == self._interrupted_after:
            raise KeyboardInterrupt

    def _attempt(self, changes: Changes) -> Attempt:
        done = Done.by(changes)
        allocated = self._script.allocated(done)
        uses = [self._use("native", allocated, self._script.waste), self._use("elastic", allocated)]
        models = [_model(self._script.recomputations(done))] if self._script.modules else []
        found = self._prediction(done, uses[0])
        return Attempt(changes, found, Survey(models=models, allocators=uses))

    def with_least_of(self, attempt: Attempt, use: AllocatorUse) -> Attempt:
        assert attempt.survey is not None
        self.count += 1
        own = replace(use, least_bytes=int(self._script.least_itself * use.peak_allocated_bytes))
        others = [own if each == use else each for each in attempt.allocators()]
        return replace(attempt, survey=replace(attempt.survey, allocators=others))

    def _use(self, allocator: str, allocated: int, waste: float = 1.0) -> AllocatorUse:
        reserved = int(allocated * waste)
        fits = reserved <= self._room
        is_found_out = allocator == "elastic" and not fits
        least = int(self._script.least * allocated) if is_found_out else None
        return AllocatorUse(allocator, "", allocated, reserved, fits, least)

    def _prediction(self, done: Done, use: AllocatorUse) -> Prediction:
        return prediction(
            self._script.allocated(done),
            use.peak_reserved_bytes,
            room=self._room,
            seconds=self._script.step(done),
            allocator=use.allocator,
        )


def _model(recomputations: list[Recomputation]) -> ModelUse:
    return ModelUse(
        kind="Net", names=[], calls=[], batch=None, is_transformers=False, attention=None,
        has_batch_statistics=False, has_dropout=False, autocast=None, parameter_types={},
        recomputations=recomputations,
    )  # fmt: skip


def prediction(
    allocated: int, reserved: int, *, room: int, seconds: float | None, allocator: str = "native"
) -> Prediction:
    """Returns the prediction of a run with these figures."""
    return Prediction(
        script="train.py", gpu="T4", driver="linux", allocator=allocator, policy="strict",
        conf="", torch="2.13", total_bytes=room + CONTEXT, context_bytes=CONTEXT,
        peak_allocated_bytes=allocated, peak_reserved_bytes=reserved,
        device_used_bytes=reserved + CONTEXT, shared_used_bytes=0, plan=None, shared=None,
        shared_by_category={}, shared_lines=[], fits=reserved <= room,
        headroom_bytes=room - reserved, peak_allocated_range_bytes=None,
        peak_reserved_range_bytes=None, stopped=None, out_of_memory=None, num_ooms=0,
        by_category={"activations": allocated}, top_lines=[], step_peaks_bytes=[],
        step_seconds=seconds, step_seconds_range=None, step=None, other_cards=[], assumptions=[],
        written=[], uses_cuda=True, events=2, seconds=1.0,
    )  # fmt: skip
