"""Notes what a simulated program's tensors are used for, and when its steps end."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from plimsoll.engine.tensor_uses import TensorUses
from plimsoll.prediction.child.compiled_parts import watch_calls, watch_compiled
from plimsoll.prediction.child.fewer_steps import StepLimit
from plimsoll.prediction.child.step_clock import StepClock
from plimsoll.recordings.label import Label

if TYPE_CHECKING:
    import weakref
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation


class BlockLabels:
    """Labels of each device's blocks, and the ends of the program's steps.

    Attributes:
        by_device: For each device, the labels of its blocks.
        step_clock: Measures the time of steps.
        step_limit: Ends training loops after a number of steps.
    """

    def __init__(self, simulation: Simulation, steps: int | None) -> None:
        simulation.observe()
        count = len(simulation.allocators)
        self.by_device: list[list[Label]] = [[] for _ in range(count)]
        self.step_clock = StepClock(simulation)
        self.step_limit = StepLimit(simulation, steps)
        self._simulation = simulation
        self._uses = TensorUses(
            simulation.watchers,
            self._label,
            after_step=simulation.watchers.guarded("the time of steps", self._end_step),
        )
        self._steps_of: Counter[int] = Counter()  # the number of steps of each optimizer
        # How many events each device had after each step of each optimizer.
        self._ends_of: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        self._limit = simulation.watchers.guarded("its training loops", self.step_limit.end_step)
        self._compiled: list[weakref.ref[Any]] = []  # compiled modules, whose parts no hook sees

    def install(self, torch: ModuleType) -> None:
        """Begins to observe modules and optimizers."""
        self._uses.install(torch)
        self._simulation.watchers.guarded("the calls of modules", self._install)(torch)

    def finish(self) -> None:
        """Labels the tensors whose use is known only at the end of the program.

        These are for example the gradients of a step that failed.
        """
        self._simulation.watchers.guarded("what was compiled", self._note_compiled)()
        self._uses.look()

    def _install(self, torch: ModuleType) -> None:
        guarded = self._simulation.watchers.guarded
        note_forward = guarded("the calls of a step", self.step_clock.note_forward)
        note_result = guarded("the results of modules", self.step_clock.note_result)
        watch_calls(torch, note_forward, note_result)
        self.step_clock.install(torch)
        guarded("the number of steps that --steps allows", self.step_limit.install)(torch)
        watch_compiled(
            torch,
            self._simulation.watchers,
            self._compiled.append,
            self._uses.before_step,
            self._uses.after_step,
            lambda optimizer: self._steps_of[self.step_clock.number_of(optimizer)],
        )

    def _note_compiled(self) -> None:
        for reference in self._compiled:
            module = reference()
            for part in () if module is None else module.modules():
                self._uses.note_module(part)

    def _label(self, device: int, address: int, category: str) -> None:
        event = self._simulation.allocators[device].engine.history_size
        self.by_device[device].append(Label(event, address, category, device))

    def ends_of_steps(self, device: int) -> list[int]:
        """Returns how many memory events a device had at the end of each step of `StepClock`."""
        optimizers = self.step_clock.optimizers_of_steps()
        return sorted(ends[device] for of in optimizers for ends in self._ends_of[of])

    def _end_step(self, optimizer: Any) -> None:
        number = self.step_clock.number_of(optimizer)
        self._steps_of[number] += 1
        events = tuple(each.engine.history_size for each in self._simulation.allocators)
        self._ends_of[number].append(events)
        self.step_clock.end_step(optimizer)
        self._limit(min(self._steps_of.values()))
