"""Finds which modules to recompute in the backward pass, to save memory at the least extra time.

Between its forward and its backward pass, a recomputed module keeps only its inputs, which are
outputs of earlier modules. Dynamic programming over the tree of calls finds the sets of modules
that save the most bytes for their time.

The peak with a set of recomputed modules is computed from the lifetimes of a simulated step's
blocks. Some of these blocks were allocated in a module's call and lived until its backward pass. If
the module is recomputed, such blocks are freed at the end of the call. The recomputation allocates
all of them again at the moment when the backward pass would free the first one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from plimsoll.prediction.survey import Recomputation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.lifetimes import Lifetimes

# The dynamic programming counts saved bytes in units. The size of a unit is the most bytes that any
# set of modules can save, divided by this number.
_STEPS = 256
_PLANS = 24
_SMALLEST_SHARE = 2e-4  # modules that save less than this share of the peak are left out


@dataclass(frozen=True)
class Call:
    """One call of a module. Moments are counted in events.

    Attributes:
        start: The moment when the call began.
        end: The moment when the call ended.
        seconds: The time that the call took.
        backward: The moment when the call's backward pass began.
        given: Addresses of the call's inputs.
        results: Addresses of the call's results.
    """

    start: int
    end: int
    seconds: float
    backward: int
    given: frozenset[int]
    results: frozenset[int]


@dataclass
class Module:
    """A module of a model, and the modules that it calls.

    Attributes:
        name: Its name in the model.
        may_repeat: Whether a recomputation gives the same results.
        calls: Its calls in the step.
        inner: The modules that it calls.
    """

    name: str
    may_repeat: bool
    calls: list[Call] = field(default_factory=list)
    inner: list[Module] = field(default_factory=list)


@dataclass
class _Kept:
    """The blocks that one call of a module keeps.

    Attributes:
        end: The moment when a recomputed module frees the blocks.
        again: The moment when the recomputation has allocated them again.
        blocks: The indices of these blocks among the blocks of the step.
        given: Indices of the input blocks that must live longer if the call is recomputed.
        rise: The most by which memory rose during the call.
    """

    end: int
    again: int
    blocks: NDArray[np.int64]
    given: NDArray[np.int64]
    rise: int


class _Step:
    """The blocks of one step. Computes the memory of the step if some modules are recomputed."""

    def __init__(self, blocks: Lifetimes, sizes: NDArray[np.uint64], begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self.level = blocks.level(sizes)[begin:end]
        first, last = np.searchsorted(blocks.start, [begin, end])
        self.start = blocks.start[first:last]
        self.stop = blocks.end[first:last]
        self.size = sizes[first:last].astype(np.int64)
        self.address = blocks.address[first:last]

    def kept(self, call: Call) -> _Kept | None:
        """Returns the blocks that a call keeps for its backward pass; None if it keeps none.

        The blocks of the call's results are left out.
        """
        first, last = np.searchsorted(self.start, [call.start, call.end])
        part = np.arange(first, last)
        part = part[self.stop[part] >= call.backward]
        if call.results:
            results = np.array(sorted(call.results), dtype=np.uint64)
            part = part[~np.isin(self.address[part], results)]
        if not len(part):
            return None
        again = int(self.stop[part].min())
        level = self.level[call.start - self.begin : call.end - self.begin]
        before = int(level[0]) if len(level) else 0
        rise = int(level.max()) - before if len(level) else 0
        again = min(again, self.end)
        return _Kept(call.end, again, part, self._given(call, again), rise)

    def _given(self, call: Call, again: int) -> NDArray[np.int64]:
        """Returns the input blocks that the step frees before a recomputation needs them."""
        if not call.given:
            return np.zeros(0, dtype=np.int64)
        addresses = np.array(sorted(call.given), dtype=np.uint64)
        last = int(np.searchsorted(self.start, call.start))
        live = np.flatnonzero(
            (self.stop[:last] >= call.start)
            & (self.stop[:last] < again)
            & np.isin(self.address[:last], addresses)
        )
        return live.astype(np.int64)

    def saved_by(self, kept: _Kept) -> int:
        """Returns the bytes that recomputing a call frees until the call's backward pass."""
        return int(self.size[kept.blocks].sum()) - int(self.size[kept.given].sum())

    def peak_without(self, kept: Iterable[_Kept]) -> int:
        """Returns the peak of the step if the calls that keep these blocks are recomputed."""
        change = np.zeros(self.end - self.begin + 1, dtype=np.int64)
        spikes: list[tuple[int, int]] = []
        until: dict[int, int] = {}
        for one in kept:
            for block in one.given.tolist():
                until[block] = max(until.get(block, 0), one.again)
            size = int(self.size[one.blocks].sum())
            change[one.end - self.begin] -= size
            change[one.again - self.begin] += size
            spikes.append((max(one.again - self.begin - 1, 0), one.rise))
        for block, again in until.items():
            change[int(self.stop[block]) - self.begin] += int(self.size[block])
            change[again - self.begin] -= int(self.size[block])
        level = self.level + np.cumsum(change)[:-1]
        peak = int(level.max())
        return max([peak, *(int(level[at]) + rise for at, rise in spikes)])


def recomputations(
    modules: list[Module],
    blocks: Lifetimes,
    sizes: NDArray[np.uint64],
    begin: int,
    end: int,
) -> list[Recomputation]:
    """Returns up to `_PLANS` sets of modules to recompute.

    They range from a set that saves few bytes to one that saves as many as possible. Each set takes
    the least extra time for the bytes that it saves.

    Args:
        modules: The outermost modules, which the model itself calls.
        blocks: The blocks of the whole run.
        sizes: The bytes of each block, rounding included.
        begin: The event with which the step begins.
        end: The event after the step.

    Returns:
        The sets, from the fastest to the slowest. Each has a lower peak than all faster ones.
    """
    step = _Step(blocks, sizes, begin, end)
    if not len(step.level):
        return []
    least = max(1, int(_SMALLEST_SHARE * int(step.level.max())))
    choices = list(_choices(modules, step, least))
    total = sum(choice.most for choice in choices)
    if total <= 0:
        return []
    unit = -(-total // _STEPS)
    best = _Best.nothing()
    for choice in choices:
        best = best.join(choice.best(unit))
    plans = []
    for steps in np.unique(np.linspace(1, len(best.seconds) - 1, _PLANS).astype(int)).tolist():
        chosen = best.chosen[steps]
        peak = step.peak_without(kept for each in chosen for kept in each.kept)
        seconds = sum(each.seconds for each in chosen)
        plans.append(Recomputation([each.module.name for each in chosen], peak, seconds))
    return list(_front(plans, int(step.level.max())))


def _front(plans: list[Recomputation], peak: int) -> Iterator[Recomputation]:
    for plan in sorted(plans, key=lambda each: (each.seconds, each.peak_bytes)):
        if plan.peak_bytes < peak:
            peak = plan.peak_bytes
            yield plan


@dataclass(eq=False)
class _Choice:
    """A module that may be recomputed, as a whole or in parts.

    Attributes:
        module: The module.
        kept: The blocks that its calls keep.
        bytes: The bytes that its recomputation saves.
        seconds: The time that its calls took.
        inner: The choices for the modules that this module calls.
        place: The moment of the module's first call. If two modules save the same bytes in the
            same time, the earlier one is the better choice: when the backward pass recomputes the
            earlier module, the blocks of the later module have been freed.
    """

    module: Module
    kept: list[_Kept]
    bytes: int
    seconds: float
    inner: list[_Choice]
    place: int

    @property
    def most(self) -> int:
        """The most bytes that can be saved by recomputing the whole module or parts of it."""
        return max(self.bytes, sum(each.most for each in self.inner))

    def best(self, unit: int) -> _Best:
        """Returns the plans that save 0, 1, 2, … units of `unit` bytes in the least time."""
        best = _Best.nothing()
        for each in self.inner:
            best = best.join(each.best(unit))
        if self.module.may_repeat and self.bytes >= unit:
            best = best.or_all(self, self.bytes // unit)
        return best


def _choices(modules: list[Module], step: _Step, least: int) -> Iterator[_Choice]:
    for module in modules:
        kept = [found for call in module.calls if (found := step.kept(call)) is not None]
        size = sum(step.saved_by(one) for one in kept)
        inner = list(_choices(module.inner, step, least)) if kept else []
        if size < least and not inner:
            continue
        seconds = sum(call.seconds for call in module.calls)
        yield _Choice(module, kept, size, seconds, inner, module.calls[0].start)


class _Best:
    """The fastest plans. A plan is a set of modules to recompute.

    The plan at index n takes the least time of all plans that save at least n units of bytes.
    """

    def __init__(self, seconds: NDArray[np.float64], chosen: list[tuple[_Choice, ...]]) -> None:
        self.seconds = seconds
        self.chosen = chosen

    @classmethod
    def nothing(cls) -> _Best:
        """Returns the plan that saves no bytes and takes no time."""
        return cls(np.zeros(1), [()])

    def join(self, other: _Best) -> _Best:
        """Combines the plans of two sets of modules that have no module in common."""
        count = len(self.seconds) + len(other.seconds) - 1
        seconds = np.full(count, np.inf)
        origin = np.zeros(count, dtype=np.int64)
        for units, spent in enumerate(other.seconds.tolist()):
            part = slice(units, units + len(self.seconds))
            sums = self.seconds + spent
            better = sums < seconds[part] - 1e-15
            seconds[part] = np.where(better, sums, seconds[part])
            origin[part] = np.where(better, units, origin[part])
        chosen = [(*self.chosen[at - origin[at]], *other.chosen[origin[at]]) for at in range(count)]
        return _Best(seconds, chosen)._monotonic()

    def or_all(self, choice: _Choice, units: int) -> _Best:
        """Adds the plan that recomputes the whole module of `choice`. The plan saves `units`.

        If a plan is already at index `units`, only the faster of the two stays there.
        """
        count = max(len(self.seconds), units + 1)
        seconds = np.full(count, np.inf)
        seconds[: len(self.seconds)] = self.seconds
        chosen = [*self.chosen, *[()] * (count - len(self.chosen))]
        cost = choice.seconds * (1 + 1e-10 * choice.place)
        if cost < seconds[units]:
            seconds[units], chosen[units] = cost, (choice,)
        return _Best(seconds, chosen)._monotonic()

    def _monotonic(self) -> _Best:
        """Replaces each plan by a faster one that saves more, if one exists. Returns self."""
        for at in range(len(self.seconds) - 2, -1, -1):
            if self.seconds[at + 1] < self.seconds[at]:
                self.seconds[at], self.chosen[at] = self.seconds[at + 1], self.chosen[at + 1]
        return self


def modules_by_name(
    calls: Iterable[tuple[str, bool, Call, str | None]],
) -> list[Module]:
    """Builds the tree of modules from their calls.

    Args:
        calls: A tuple for each call: the name of the called module, whether this module may be
            recomputed, the call, and the name of the calling module (None for the model itself).
    """
    modules: dict[str, Module] = {}
    inner: defaultdict[str | None, list[str]] = defaultdict(list)
    for name, may_repeat, call, parent in calls:
        if name not in modules:
            modules[name] = Module(name, may_repeat)
            inner[parent].append(name)
        modules[name].calls.append(call)
    for parent, names in inner.items():
        if parent is not None and parent in modules:
            modules[parent].inner.extend(modules[name] for name in names)
    return [modules[name] for name in inner[None]]
