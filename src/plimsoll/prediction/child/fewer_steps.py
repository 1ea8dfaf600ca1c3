"""Ends a program's training loops after some steps, and lets the rest of the program run.

plimsoll can end two kinds of loops without an error. The loop of transformers' Trainer ends after
the number of steps in the Trainer's state. A `for` over a DataLoader ends when the loader yields no
further batch.
"""

from __future__ import annotations

import ast
import sys
import weakref
from typing import TYPE_CHECKING, Any

from plimsoll.base.printable import printable
from plimsoll.base.telemetry.job import launched_as
from plimsoll.base.watchers import standing_in
from plimsoll.prediction.child.planned_steps import (
    loader_of,
    loops_at,
    planned_steps,
    state_of_trainer,
)
from plimsoll.prediction.parts import FewerSteps
from plimsoll.torch.simulated.program_frames import program_frames, variables_of, where

if TYPE_CHECKING:
    from types import FrameType, ModuleType

    from plimsoll.torch.simulated.simulation import Simulation

_KNOWN_AFTER = 2
"""If plimsoll cannot end a loop, it says so after this many steps.

It does not say so after one step, because the first step may be a warm-up.
"""


class StepLimit:
    """Ends training loops that have reached the limit of steps.

    A loop over a loader gets no further batch. An outer loop over epochs continues: each later
    epoch makes one step, and does all its other work.

    Attributes:
        can_end: Whether a step was in a loop that a limit can end.
    """

    def __init__(self, simulation: Simulation, at_most: int | None) -> None:
        """Makes a limit that ends no loop before `install`.

        Args:
            simulation: The GPUs of this process.
            at_most: The number of steps; None for no limit.
        """
        self._simulation = simulation
        self._at_most = at_most
        self.can_end = False
        self._planned: int | None = None
        self._steps = 0
        self._has_ended = False
        self._told = False
        self._passes: weakref.WeakSet[Any] = weakref.WeakSet()
        self._last: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def would_help(self) -> bool:
        """Whether the user left out `--steps`, and `--steps` could end a loop of the program."""
        return self._at_most is None and self.can_end

    @property
    def kept(self) -> FewerSteps | None:
        """The effect of the limit; None if there is no limit, or it left out no step."""
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
                # A loader with persistent workers uses this same iterator in the next epoch.
                self._last.discard(batches)
                raise StopIteration
            self._passes.add(batches)
            return following(batches)

        kind.__next__ = standing_in(following, limited)

    def end_step(self, done: int) -> None:
        """Makes the loop around an optimizer's step end at the limit; call this after each step.

        Args:
            done: The number of steps so far. If the program has several optimizers, only the steps
                of the optimizer with the fewest steps count.
        """
        runners = self._simulation.runners
        if self._at_most is None:
            if not self.can_end:
                self.can_end = _can_end(program_frames(sys._getframe(1), runners))
            return
        self._steps += 1
        if self._planned is None:
            self._planned = planned_steps(sys._getframe(1), runners, done)
        frames = program_frames(sys._getframe(1), runners)
        if not self.can_end:
            self.can_end = _can_end(frames)
        if done == 1:
            self._has_ended |= any(_shorten_trainer(frame, self._at_most) for frame in frames)
        if done >= self._at_most:
            self._end_pass(frames)
        if done >= min(_KNOWN_AFTER, self._at_most) and any(map(loops_at, frames)):
            self._tell_runs_on(self._at_most)

    def _tell_runs_on(self, at_most: int) -> None:
        """Prints once that plimsoll cannot end the loops around the step."""
        is_short = self._planned is not None and self._planned <= at_most
        if self.can_end or self._told or is_short or launched_as("RANK") not in (None, 0):
            return
        self._told = True
        steps = "its" if self._planned is None else f"{self._planned:,}"
        text = (
            f"plimsoll: --steps {at_most} does not end the loop around "
            f"{where(self._simulation.runners)}, which is neither in a Trainer of transformers nor "
            f"a `for` over a DataLoader: all {steps} steps run; Ctrl-C gives the answer so far"
        )
        print(printable(text), file=sys.stderr, flush=True)

    def _end_pass(self, frames: list[FrameType]) -> None:
        """Ends the innermost `for` over a DataLoader around the step, before its next batch."""
        for frame in frames:
            for loop in reversed(loops_at(frame)):
                loader = loader_of(loop, frame) if isinstance(loop, ast.For) else None
                if loader is not None:
                    self._has_ended = True
                    for batches in self._passes:
                        if batches._index_sampler is loader._index_sampler:
                            self._last.add(batches)
                    return


def _can_end(frames: list[FrameType]) -> bool:
    """Returns whether any of the frames runs a Trainer's method, or a `for` over a DataLoader."""
    return any(
        _trainer_state(frame) is not None
        or any(
            isinstance(loop, ast.For) and loader_of(loop, frame) is not None
            for loop in loops_at(frame)
        )
        for frame in frames
    )


def _trainer_state(frame: FrameType) -> Any:
    """Returns the state of transformers' Trainer; None if the frame runs none of its methods."""
    state: Any = state_of_trainer(variables_of(frame))
    is_own = state is not None and type(state).__module__.startswith("transformers.")
    return state if is_own else None


def _shorten_trainer(frame: FrameType, at_most: int) -> bool:
    """Makes a Trainer end after `at_most` steps. Returns whether the frame is a Trainer's.

    If the Trainer evaluates or saves checkpoints every N steps, plimsoll lowers N to half of
    `at_most` or less, because steps after an evaluation or a checkpoint may reserve more memory.
    """
    state = _trainer_state(frame)
    if state is None:
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
