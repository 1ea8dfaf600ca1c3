"""Finds the use of each block, by one set of rules for predictions and recordings.

Labels decide first. While the program ran, PyTorch reported the use of some addresses, for example
that a parameter, a gradient or optimizer state was there.
For other blocks, the evidence of the request decides (`evidence.py`): which part of the program
made the request, in which pass, whether autograd was recording, and when the block ends. If a
recording has no stacks, the rules compare lifetimes with the steps (`lifetime_categories.py`).

A block that no rule names is "other".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from plimsoll.recordings.analysis.category_names import CATEGORIES, NUMBER, WORKSPACE_SIZES
from plimsoll.recordings.analysis.evidence import Place, find_evidence
from plimsoll.recordings.analysis.lifetime_categories import categories_by_lifetimes, steps_crossed
from plimsoll.recordings.analysis.steps import NO_STEPS
from plimsoll.recordings.origin import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from plimsoll.recordings.analysis.evidence import Evidence
    from plimsoll.recordings.analysis.lifetimes import Lifetimes
    from plimsoll.recordings.analysis.steps import Steps
    from plimsoll.recordings.events import Frame
    from plimsoll.recordings.label import Label

Source = Literal["program", "stacks", "lifetimes", "nothing"]

_ROLE = {name: number for number, name in enumerate(ROLES)}
_LEAST_RELEASED = 4
_LEAST_STEPS = 3
_MOSTLY = 0.75
_MOST_CROSSED = 2
"""An activation or input outlives at most this many step boundaries. In a GAN some outlive two."""


@dataclass(frozen=True)
class Categories:
    """The use of each block of `Lifetimes`.

    Attributes:
        number: For each block, an index into `CATEGORIES`. uint8.
        source: The kind of evidence. "program": what the running program reported about its tensors
            or passes. "stacks": the stacks of the requests. "lifetimes": when the steps began and
            when blocks were live. "nothing": none of these.
    """

    number: NDArray[np.uint8]
    source: Source


def find_categories(
    lifetimes: Lifetimes,
    steps: Steps,
    frames: Callable[[int], list[Frame]],
    failures: Sequence[int] = (),
    labels: Sequence[Label] = (),
) -> Categories:
    """Finds the use of each block.

    Args:
        lifetimes: The blocks.
        steps: The steps of the program.
        frames: A function that returns the frames of a stack, for example `DeviceTrace.frames`.
        failures: The numbers of the events at which requests failed, in order.
        labels: For addresses on this device, the use that PyTorch reported while the program ran.
    """
    evidence = find_evidence(lifetimes, frames, labels, CATEGORIES)
    labelled = evidence.label >= 0
    source: Source
    if lifetimes.stack.any():
        number = _Rules(lifetimes, steps, evidence, failures).categories()
        source = "program" if evidence.is_from_program else "stacks"
    elif len(steps):
        number = categories_by_lifetimes(lifetimes, steps)
        source = "lifetimes"
    else:
        number = np.full(len(lifetimes), NUMBER["other"], dtype=np.uint8)
        source = "program" if labelled.any() else "nothing"
    number[labelled] = evidence.label[labelled]
    return Categories(number, source)


class _Rules:
    """Applies the rules to one history; each rule overrides those before it."""

    def __init__(
        self, lifetimes: Lifetimes, steps: Steps, evidence: Evidence, failures: Sequence[int]
    ) -> None:
        self._blocks = lifetimes
        self._evidence = evidence
        # Detected steps are a guess and recorded passes are certain. So if passes are recorded,
        # detected steps are ignored.
        known = steps if steps.source == "marks" or not evidence.has_origins else NO_STEPS
        self._boundaries = known.boundaries
        self._crossed = steps_crossed(lifetimes, known)
        place, self._role = evidence.place, evidence.role
        self._is = {one: place == one for one in Place}
        self._passes = self._is[Place.FORWARD] | self._is[Place.PROGRAM]
        backward = self._is[Place.BACKWARD] | self._is[Place.RECOMPUTED]
        self._backward_starts = lifetimes.start[backward]
        if not len(known):
            self._crossed = np.where(
                self._is[Place.PROGRAM], _passes_crossed(lifetimes, backward), 0
            )
        reached = np.union1d(self._backward_starts, np.array(failures, dtype=np.int64))
        # `reached` has the events at which a backward pass allocates or a request fails. A failed
        # request may have prevented a backward pass. A block survives if it is still live at
        # the first of these events after its allocation.
        self._survives = lifetimes.end > _next(reached, lifetimes.start, lifetimes.event_count)
        self._result = np.full(len(lifetimes), NUMBER["temporaries"], dtype=np.uint8)

    def categories(self) -> NDArray[np.uint8]:
        """Returns an index into `CATEGORIES` for each block."""
        self._name_what_is_kept()
        self._name_activations()
        self._name_inputs()
        self._name_gradients()
        self._name_kv_cache()
        self._name_workspaces()
        return self._result

    def _name(self, category: str, which: NDArray[np.bool_]) -> None:
        self._result[which] = NUMBER[category]

    def _has_role(self, role: str) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self._role == _ROLE[role]
        return found

    def _name_what_is_kept(self) -> None:
        is_open = self._blocks.end >= self._blocks.event_count
        self._name("parameters", self._is[Place.BUILD])
        stays = (self._crossed > 0) | is_open
        self._name("optimizer_state", self._is[Place.OPTIMIZER] & stays)
        self._name("collectives", self._is[Place.COLLECTIVE])
        self._name("recomputed_activations", self._is[Place.RECOMPUTED])
        self._name("other", self._is[Place.PROGRAM] & is_open)
        self._name("kv_cache", self._is[Place.PROGRAM] & is_open & self._evidence.names_kv)
        self._name("other", self._passes & (self._crossed > _MOST_CROSSED))

    def _name_activations(self) -> None:
        start, end, forward = self._blocks.start, self._blocks.end, self._is[Place.FORWARD]
        records = self._evidence.records
        is_output = ~self._has_role("temporary") & ~self._has_role("workspace")
        fresh = self._crossed <= _MOST_CROSSED
        candidates = is_output & (forward | (self._is[Place.PROGRAM] & fresh))
        kept = candidates & (records != 0) & self._survives
        # If the history ends in a forward pass, the activations of that pass are live at the end.
        open_end = (end >= self._blocks.event_count) & (
            start > int(self._backward_starts.max(initial=-1))
        )
        trains = len(self._backward_starts) > 0
        kept |= forward & is_output & (records != 0) & open_end
        # Without autograd, the results of modules count as activations.
        without = forward & is_output & (records == 0)
        if not trains and not self._evidence.has_origins:
            without |= forward & is_output
        self._name("activations", kept | (without & fresh))
        released = self._released_graphs(forward & is_output & (records != 0) & ~kept)
        self._name("unused_activations", released)
        if not trains and released.any():
            self._name("unused_activations", kept)

    def _released_graphs(self, candidates: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Marks the candidates whose autograd graph was dropped whole, without a backward pass.

        Dropping the last result of a forward pass frees all blocks that autograd saved for it, one
        after another without a request between them. A function that returns also frees blocks in a
        row. So frees in a row count as a dropped graph only under two conditions. First, they free
        at least four candidates. Second, they free at least three quarters as many candidates as
        are still live afterwards. Candidates that are never freed do not count.
        """
        found = np.flatnonzero(candidates & (self._blocks.end < self._blocks.event_count))
        result = np.zeros(len(candidates), dtype=np.bool_)
        if not len(found):
            return result
        starts = np.sort(self._blocks.start)
        # The number of requests before each free; frees in a row have the same number.
        gap = np.searchsorted(starts, self._blocks.end[found])
        gaps, which, count = np.unique(gap, return_inverse=True, return_counts=True)
        begin, end = np.sort(self._blocks.start[found]), np.sort(self._blocks.end[found])
        last = np.full(len(gaps), -1, dtype=np.int64)
        np.maximum.at(last, which, self._blocks.end[found])
        left = np.searchsorted(begin, last, side="right") - np.searchsorted(end, last, side="right")
        is_release = (count >= _LEAST_RELEASED) & (count >= 0.75 * left)
        result[found[is_release[which]]] = True
        return result

    def _name_inputs(self) -> None:
        self._name("inputs", self._passes & self._has_role("input"))
        # The program's own code, not a module, requests the inputs. Before them come the requests
        # of the optimizer, a backward pass or the code that builds the model. After them come the
        # requests of modules.
        start, forward = self._blocks.start, self._is[Place.FORWARD]
        if not forward.any():
            return
        last_call = _last(start[forward], start)
        last_other = _last(start[~self._passes], start)
        first = self._is[Place.PROGRAM] & (last_other >= last_call)
        stays = self._survives | (self._crossed > 0)
        self._name("inputs", first & stays & (self._crossed <= _MOST_CROSSED))

    def _name_gradients(self) -> None:
        """Names gradients, which outlive their backward pass. Does nothing if labels name them."""
        if (self._evidence.label == NUMBER["gradients"]).any():
            return
        start, end = self._blocks.start, self._blocks.end
        other = self._is[Place.OPTIMIZER] | self._is[Place.PROGRAM]
        after = np.union1d(start[other], self._boundaries)
        outlives = end > _next(after, start, self._blocks.event_count - 1)
        is_parameter = self._is[Place.BUILD] | (self._evidence.label == NUMBER["parameters"])
        sizes = np.unique(self._blocks.size[is_parameter])
        fits = np.isin(self._blocks.size, sizes) if len(sizes) else np.ones_like(outlives)
        self._name("gradients", self._is[Place.BACKWARD] & outlives & fits)

    def _name_kv_cache(self) -> None:
        """Names KV caches: buffers that persist over steps of inference.

        A step of inference begins with a request by a module while autograd does not record, and
        ends at the next request outside modules. There are three kinds of cache:

        - A block that outlives its step. A module requests it, in code named after a cache.
        - A block that grows: most steps request a larger block with the same call stack, and the
          next step frees the previous block while modules run.
        - A block that lives for several steps. Code outside modules requests it, and is named after
          a cache. Such blocks count only in a history without backward passes.
        """
        start, end = self._blocks.start, self._blocks.end
        inside = self._is[Place.FORWARD] & (self._evidence.records == 0)
        order = np.argsort(start, kind="stable")
        passes = (self._is[Place.FORWARD] | self._is[Place.PROGRAM])[order]
        ordered, times = inside[order][passes], start[order][passes]
        begins = times[ordered & ~np.append(False, ordered[:-1])]
        if len(begins) < _LEAST_STEPS:
            return
        ends = times[ordered & ~np.append(ordered[1:], False)]
        born = np.searchsorted(begins, start, side="right") - 1
        dies = np.searchsorted(begins, end, side="left") - 1
        stays = inside & (born >= 0) & (dies > born)
        handed_on = stays & (dies - born == 1) & (end < ends[np.clip(dies, 0, len(ends) - 1)])
        growing = []
        for stack in np.unique(self._blocks.stack[handed_on]).tolist():
            made = inside & (self._blocks.stack == stack)
            steps, first = np.unique(born[made], return_index=True)
            largest = np.maximum.reduceat(self._blocks.size[made].astype(np.int64), first)
            if len(steps) >= _LEAST_STEPS and (np.diff(largest) > 0).mean() >= _MOSTLY:
                growing.append(stack)
        grows = np.isin(self._blocks.stack, growing)
        # To grow a cache, a program requests a larger block, copies the data to it, and then frees
        # the old block. So a block is also a cache if the last request before its free has the
        # stack of a growing cache.
        copied = grows[order][np.searchsorted(start[order], end) - 1]
        cached = (stays & self._evidence.names_cache) | (handed_on & (grows | copied))
        if not len(self._backward_starts):
            lasts = dies - born >= _LEAST_STEPS
            cached |= self._is[Place.PROGRAM] & lasts & self._evidence.names_cache
        self._name("kv_cache", cached)

    def _name_workspaces(self) -> None:
        """Names workspaces of libraries by recorded roles, or else by their sizes.

        A thread requests a workspace at its first matrix product on a stream. The forward and the
        backward pass run in different threads. So for each size and stream, only the first suitable
        block outside backward passes and the first one in a backward pass count as workspaces.
        """
        self._name("workspaces", self._has_role("workspace"))
        blocks = self._blocks
        # A workspace must live for half of the remaining events. It need not live to the end,
        # because a trainer may free workspaces earlier.
        left = blocks.event_count - blocks.start
        kept = (2 * (blocks.end - blocks.start) >= left) & ~self._is[Place.BUILD] & (self._role < 0)
        kept &= np.isin(blocks.size, WORKSPACE_SIZES) & (blocks.start >= 0)
        found = np.flatnonzero(kept)
        in_backward = (self._is[Place.BACKWARD] | self._is[Place.RECOMPUTED])[found]
        key = [blocks.size[found], blocks.stream[found], in_backward]
        _, first = np.unique(
            np.stack([k.astype(np.uint64) for k in key]), axis=1, return_index=True
        )
        self._result[found[first]] = NUMBER["workspaces"]
        self._name("other", (blocks.start < 0) & (blocks.stack == 0))


def _passes_crossed(lifetimes: Lifetimes, backward: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns the number of backward passes that end during each block's life.

    A program that updates its parameters by hand has no steps, but it has backward passes. One pass
    consists of successive requests by backward passes. It ends at the last of these requests.

    Args:
        lifetimes: The blocks.
        backward: Whether a backward pass requested the block.
    """
    order = np.argsort(lifetimes.start, kind="stable")
    inside = backward[order] & (lifetimes.start[order] >= 0)
    last = inside & ~np.append(inside[1:], False)
    ends = lifetimes.start[order][last]
    found: NDArray[np.int64] = np.searchsorted(ends, lifetimes.end, side="left") - np.searchsorted(
        ends, lifetimes.start, side="right"
    )
    return found


def _next(events: NDArray[np.int64], after: NDArray[np.int64], otherwise: int) -> NDArray[np.int64]:
    """Returns, for each number in `after`, the first greater one in the sorted `events`.

    Where no greater one exists, the result is `otherwise`.
    """
    place = np.searchsorted(events, after, side="right")
    return np.append(events, otherwise)[place]


def _last(events: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns, for each number in `before`, the last smaller one in the sorted `events`, or -1."""
    return np.append(events, -1)[np.searchsorted(events, before) - 1]
