"""Surveys a program while it runs on simulated GPUs: finds its parts that could be changed."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import outside_compilers, standing_in
from plimsoll.offloading.training.wrappers import is_wrapper, plain_name, unwrapped
from plimsoll.prediction.child.answer import run_of
from plimsoll.prediction.child.peak_contents import blocks_of
from plimsoll.prediction.child.survey.allocators import try_allocators
from plimsoll.prediction.child.survey.arguments import Arguments
from plimsoll.prediction.child.survey.batches import Batches
from plimsoll.prediction.child.survey.calls import ModuleCall, StepCalls
from plimsoll.prediction.child.survey.losses import Losses
from plimsoll.prediction.child.survey.models import Models
from plimsoll.prediction.child.survey.optimizers import Optimizers
from plimsoll.prediction.child.survey.places import innermost_place
from plimsoll.prediction.child.survey.recomputation import Call, modules_by_name, recomputations
from plimsoll.prediction.child.survey.wrappings import Wrappings
from plimsoll.prediction.survey import Survey
from plimsoll.torch.simulated.compiled.frames import let_through

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from plimsoll.prediction.child.labels import BlockLabels
    from plimsoll.prediction.survey import Place, Recomputation
    from plimsoll.torch.simulated.simulation import Simulation


@dataclass(frozen=True)
class _Step:
    """The step with the most memory at the end of its forward pass.

    Attributes:
        device: The device on which the step ran.
        calls: The calls of the outermost modules.
        backwards: The moments when the step's backward passes began.
        end: The number of the event after the step.
        allocated_bytes: The bytes allocated at the end of the step's forward pass.
    """

    device: int
    calls: list[ModuleCall]
    backwards: list[int]
    end: int
    allocated_bytes: int


class Surveyor:
    """Notes the parts of the program that could be changed."""

    def __init__(
        self,
        simulation: Simulation,
        labels: BlockLabels | None,
        room: int | None,
        varied: str | None = None,
    ) -> None:
        self._simulation = simulation
        self._labels = labels
        self._room = room
        self._process = os.getpid()
        watchers = simulation.watchers
        self._guarded = watchers.guarded
        self._arguments = Arguments(watchers, varied)
        self._batches = Batches(watchers)
        self._optimizers = Optimizers(watchers)
        self._losses = Losses(watchers)
        self._models = Models()
        self._wrappings = Wrappings(watchers, lambda: self._optimizers.any_made)
        self._calls = StepCalls(simulation)
        self._backwards: dict[Place, None] = {}
        self._began_backward: list[int] = []
        self._allocated = 0
        self._fullest: _Step | None = None

    def install(self, torch: ModuleType) -> None:
        """Begins to observe the program's use of PyTorch."""
        self._guarded("what could be changed", self._install)(torch)

    def _install(self, torch: ModuleType) -> None:
        self._optimizers.install(torch)
        self._losses.install(torch)
        self._batches.install(torch)
        self._wrappings.install(torch)
        self._watch_modules(torch)
        self._watch_backward(torch)
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        note_step = self._guarded("steps of optimizers", self._optimizers.note_step)
        end_step = self._guarded("the calls of a whole step", self._end_step)
        before, after = outside_compilers(
            torch, lambda optimizer, *_: note_step(optimizer), lambda *_: end_step()
        )
        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)

    def listen(self) -> None:
        """Begins to observe the command line and the opened files. PyTorch need not be imported."""
        self._arguments.install()
        self._batches.listen()

    def survey(self) -> Survey:
        """Returns the survey of all that was noted."""
        models = [
            replace(use, recomputations=self._recomputations(module))
            for module, use in self._models.uses()
        ]
        device = 0 if self._fullest is None else self._fullest.device
        return Survey(
            arguments=self._arguments.uses(),
            optimizers=self._optimizers.uses(),
            models=models,
            losses=self._losses.uses(),
            backwards=list(self._backwards),
            allocators=try_allocators(self._simulation, device, self._room),
            ranks=self._simulation.world_size or 1,
            wrappings=self._wrappings.uses(),
            batches=self._batches.sizes,
            files=self._batches.files,
        )

    def _watch_modules(self, torch: ModuleType) -> None:
        kind = torch.nn.Module
        call_module = kind.__call__
        note_model = self._guarded("models", self._models.note)
        note_inner = self._guarded("autocast in models", self._models.note_inner)
        note_call = self._guarded("gradients between steps", self._optimizers.note_call)
        enter = self._guarded("the begin of modules' calls", self._calls.enter)
        leave = self._guarded("the end of modules' calls", self._leave)

        def call(module: Any, *given: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling() or not torch.is_grad_enabled() or self._is_forked():
                return call_module(module, *given, **named)
            arguments = [*given, *named.values()]
            if self._calls.is_outermost:
                note_model(torch, module, arguments)
                note_call()
            else:
                note_inner(torch)
            entered = enter(module, arguments)
            result = None
            try:
                result = call_module(module, *given, **named)
                return result
            finally:
                leave(entered, result)

        let_through(call)
        kind.__call__ = call

    def _is_forked(self) -> bool:
        """Returns whether this is a forked process, whose module calls belong to no step."""
        return os.getpid() != self._process

    def _leave(self, call: ModuleCall | None, result: Any) -> None:
        if call is not None:
            self._calls.leave(call, result)
        if self._calls.is_outermost:
            self._note_level()

    def _watch_backward(self, torch: ModuleType) -> None:
        backward = torch.autograd.backward
        note = self._guarded("calls of backward()", self._note_backward)

        def noted(*given: Any, **named: Any) -> Any:
            note()
            return backward(*given, **named)

        let_through(noted)
        torch.autograd.backward = standing_in(backward, noted)

    def _note_backward(self) -> None:
        place = innermost_place()
        if place is not None:
            self._backwards[place] = None
        self._began_backward.append(self._calls.position())
        self._note_level()

    def _note_level(self) -> None:
        allocator = self._simulation.allocators[self._calls.device]
        self._allocated = max(self._allocated, allocator.memory_allocated())

    def _end_step(self) -> None:
        calls = self._calls
        step = _Step(
            calls.device, calls.calls, self._began_backward, calls.position(), self._allocated
        )
        if (
            calls.calls
            and self._began_backward
            and (self._fullest is None or step.allocated_bytes >= self._fullest.allocated_bytes)
        ):
            self._fullest = step
        calls.begin()
        self._began_backward, self._allocated = [], 0

    def _recomputations(self, model: Any) -> list[Recomputation]:
        step = self._fullest
        if step is None or self._labels is None:
            return []
        names = {
            id(module): plain_name(name)
            for name, module in unwrapped(model).named_modules()
            if not is_wrapper(module)
        }
        calls = [call for call in step.calls if call.module is model]
        if not calls:
            return []
        found = [
            each for call in calls for each in self._inner(call, step.backwards, names, parent=None)
        ]
        blocks, sizes = blocks_of(run_of(self._simulation, self._labels, step.device))
        return recomputations(modules_by_name(found), blocks, sizes, step.calls[0].start, step.end)

    def _inner(
        self, outer: ModuleCall, backwards: list[int], names: dict[int, str], parent: str | None
    ) -> Iterator[tuple[str, bool, Call, str | None]]:
        for call in outer.inner:
            name = names.get(id(call.module))
            if not name:  # this is a wrapper, or the model inside a wrapper
                yield from self._inner(call, backwards, names, parent)
                continue
            backward = next((each for each in backwards if each >= call.end), call.end)
            noted = Call(
                call.start, call.end, call.seconds, backward,
                frozenset(call.given), frozenset(call.results),
            )  # fmt: skip
            yield name, True, noted, parent
            yield from self._inner(call, backwards, names, name)
