"""Ends a program's training loops after some steps; the rest of the program still runs.

plimsoll can end two kinds of loops without an error. The loop of transformers' Trainer ends after
the number of steps in the Trainer's state. A `for` over a DataLoader ends when the loader yields no
further batch.
"""

from __future__ import annotations

import ast
import sys
import weakref
from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import standing_in
from plimsoll.prediction.child.planned_steps import (
    loader_of,
    loops_at,
    planned_steps,
    state_of_trainer,
)
from plimsoll.prediction.parts import FewerSteps
from plimsoll.torch.simulated.program_frames import program_frames, variables_of

if TYPE_CHECKING:
    from types import FrameType, ModuleType

    from plimsoll.torch.simulated.simulation import Simulation


class StepLimit:
    """Ends training loops that have reached the limit of steps.

    A loop over a loader gets no further batch. An outer loop over epochs continues: each later
    epoch makes one step, and does all its other work.
    """

    def __init__(self, simulation: Simulation, at_most: int | None) -> None:
        """Makes a limit that ends no loop before `install`.

        Args:
            simulation: The GPUs of this process.
            at_most: The number of steps; None for no limit.
        """
        self._simulation = simulation
        self._at_most = at_most
        self._planned: int | None = None
        self._steps = 0
        self._has_ended = False
        self._passes: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def kept(self) -> FewerSteps | None:
        """The effect of the limit; None without a limit, or if the limit left out no step."""
        if self._at_most is None or self._steps < self._at_most or self._planned == self._at_most:
            return None
        return FewerSteps(self._at_most, self._steps, self._planned, self._has_ended)

    def install(self, torch: ModuleType) -> None:
        """Begins to intercept the iterators of PyTorch's loaders."""
        kind = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", None)
        following = getattr(kind, "__next__", None)
        if self._at_most is None or kind is None or following is None:
            return

        def limited(batches: Any) -> Any:
            if batches in self._last:
                self._last.discard(batches)  # persistent workers reuse the iterator
                raise StopIteration
            self._passes.add(batches)
            return following(batches)

        kind.__next__ = standing_in(following, limited)

    def end_step(self, done: int) -> None:
        """Notes the end of an optimizer's step; at the limit ends the loop around the step.

        Args:
            done: The number of steps so far, of the optimizer that has made the fewest.
        """
        if self._at_most is None:
            return
        self._steps += 1
        runners = self._simulation.runners
        if self._planned is None:
            self._planned = planned_steps(sys._getframe(1), runners, done)
        frames = program_frames(sys._getframe(1), runners)
        if done == 1:
            self._has_ended |= any(_shorten_trainer(frame, self._at_most) for frame in frames)
        if done >= self._at_most:
            self._end_pass(frames)

    def _end_pass(self, frames: list[FrameType]) -> None:
        """Makes the innermost loader loop that contains the step end before its next batch."""
        for frame in frames:
            for loop in reversed(loops_at(frame)):
                loader = loader_of(loop, frame) if isinstance(loop, ast.For) else None
                if loader is not None:
                    self._has_ended = True
                    for batches in self._passes:
                        if batches._index_sampler is loader._index_sampler:
                            self._last.add(batches)
                    return


def _shorten_trainer(frame: FrameType, at_most: int) -> bool:
    """Makes a Trainer end after `at_most` steps; returns whether the frame is a Trainer's.

    If the Trainer evaluates or saves checkpoints by steps, it is made to do so after half of the
    `at_most` steps at the latest, because the steps after an evaluation or a checkpoint may reserve
    more memory.
    """
    state: Any = state_of_trainer(variables_of(frame))
    if state is None or not type(state).__module__.startswith("transformers."):
        return False
    if state.max_steps <= at_most:
        return True
    state.max_steps = at_most
    half = max(1, at_most // 2)
    for name in ("eval_steps", "save_steps"):
        every = getattr(state, name, None)
        if isinstance(every, int) and every > half:
            setattr(state, name, half)
    return True
