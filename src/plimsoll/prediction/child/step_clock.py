"""Measures the steps of a simulated program on the simulated clock."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import time
import weakref
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plimsoll.prediction.child.planned_steps import planned_steps
from plimsoll.prediction.child.sample_count import SampleCount, batch_of
from plimsoll.prediction.parts import FEWEST_STEPS, LineTime, StepTime
from plimsoll.torch.simulated.chips import chip_of
from plimsoll.torch.simulated.program_frames import where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from plimsoll.prediction.child.sample_count import Samples
    from plimsoll.torch.simulated.library import Clock
    from plimsoll.torch.simulated.simulation import Simulation

_LINES = 10
_FEWEST_TIMED = 2
_SECONDS_BETWEEN_LOOKS = 2
_MOST_KEPT = 64  # only the latest steps are kept; they show the usual time
# Measured time divided by simulated time lies in these ranges (docs/predict.md). The first is for
# GPU work on chips whose kernels were measured, the second for GPU work on other chips, and the
# third for the host's work.
_OF_MEASURED = (0.88, 1.3)
_OF_OTHERS = (0.7, 1.5)
_OF_HOSTS = (0.6, 1.6)
# These ranges are for collectives on one machine and across machines. The second is a guess.
_OF_COLLECTIVES = (0.7, 1.5)
_OF_NETWORKS = (0.6, 2.5)


@dataclass(frozen=True)
class _End:
    """The clocks at the end of a step.

    Attributes:
        clocks: The clock of each device.
        now_ns: The machine's simulated time.
        stack_times: For each device, the time that each call stack's work has taken so far, in ns.
        samples: The number of samples so far.
    """

    clocks: list[Clock]
    now_ns: float
    stack_times: list[Sequence[float]]
    samples: Samples

    def on_device_ns(self, device: int) -> float:
        return max(self.now_ns, float(self.clocks[device].ends_ns))


@dataclass(frozen=True)
class _Step:
    """A step.

    Attributes:
        begin: The end of the previous step, or of the evaluation after it.
        end: The end of the step.
        is_whole: Whether `begin` is the end of the previous step.
    """

    begin: _End
    end: _End
    is_whole: bool

    @property
    def samples(self) -> int | None:
        return self.end.samples.since(self.begin.samples)

    def on_device_ns(self, device: int) -> float:
        return self.end.on_device_ns(device) - self.begin.on_device_ns(device)


@dataclass
class _Steps:
    """All steps of one kind.

    Attributes:
        what: The kind of step.
        line: The program's line that ended the first step; None if steps are not an optimizer's.
        count: The number of calls of `finish`.
        first_turn: The number of steps of all optimizers before the first step.
        last_turn: The number of steps of all optimizers before the latest step.
        done: The latest steps, in order.
        last: The end of the latest step.
        resumed: The end of the latest evaluation since `last`; None if there was none.
        first_second: The real time at the first call of `finish`, in seconds.
        last_second: The real time at the latest call of `finish`, in seconds.
    """

    what: str
    line: str | None = None
    count: int = 0
    first_turn: int = 0
    last_turn: int = 0
    done: deque[_Step] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))
    last: _End | None = None
    resumed: _End | None = None
    first_second: float = 0.0
    last_second: float = 0.0

    def finish(self, end: _End) -> None:
        """Notes the end of a step."""
        begin = self.resumed or self.last
        if begin is not None:
            self.done.append(_Step(begin, end, is_whole=self.resumed is None))
        self.count += 1
        self.last, self.resumed = end, None
        self.last_second = time.monotonic()
        self.first_second = self.first_second or self.last_second

    def usual(self, device: int) -> _Step:
        """Returns the usual step.

        This is the step of median time among the steps with the most frequent batch size. A step
        directly after an evaluation counts only if every step follows an evaluation, because the
        clock missed a part of its work. If two steps are in the middle, the result is the shorter
        one, because extra work adds time.
        """
        steps = [each for each in self.done if each.is_whole] or list(self.done)
        batches = Counter(each.samples for each in steps)
        usual = max(batches, key=lambda batch: (batches[batch], batch or 0))
        steps = [each for each in steps if each.samples == usual]
        steps.sort(key=lambda each: each.on_device_ns(device))
        return steps[(len(steps) - 1) // 2]


@dataclass(frozen=True)
class Pace:
    """The progress of a program's steps.

    Attributes:
        done: The number of completed steps.
        planned: The number of all steps; None if unknown.
        seconds_each: The real seconds that plimsoll takes to simulate a step after the first.
    """

    done: int
    planned: int | None
    seconds_each: float


class StepClock:
    """Records the clocks at the end of each step.

    A step is one step of an optimizer. If several optimizers take turns, as in a GAN, a step is one
    step of the optimizer that steps least often. In a program without optimizers a step is a call
    of `generate`. If the program does not call `generate` either, a step is a call of the outermost
    module: the first module that the program calls, such as the whole model.

    After each step of an optimizer the clock chooses the outermost module again. It chooses the
    next module that the program calls with gradients enabled. The time of evaluations between steps
    of optimizers does not count.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._by_optimizer: dict[int, _Steps] = {}
        self._numbers = itertools.count()
        self._numbered: dict[int, tuple[weakref.ref[Any], int]] = {}  # by the optimizer's `id`
        self._turns = 0
        self._generated = _Steps("call of generate()")
        self._called = _Steps("call of the model")
        self._outermost: weakref.ref[Any] | None = None
        self._generates = 0
        self._samples = SampleCount(self._note_evaluated)
        self._has_gradients: Callable[[], bool] = lambda: True
        self._planned: int | None = None
        self._plan = simulation.watchers.guarded("the number of its steps", self._look_at_loops)
        self._looked_second = 0.0

    def install(self, torch: ModuleType) -> None:
        """Begins to observe the batches that data loaders yield, and backward passes."""
        self._has_gradients = torch.is_grad_enabled
        self._samples.install(torch, self._simulation.watchers)

    def note_forward(self, module: Any, arguments: tuple[Any, ...]) -> None:
        """Notes a module's call. In a program without optimizers, the call may begin a step."""
        if self._by_optimizer and not self._has_gradients():
            self._samples.note_call(arguments, is_outermost=False)
            return
        if self._outermost is None or self._outermost() is None:
            self._outermost = weakref.ref(module)
            self._watch_generation(type(module))
        is_outermost = self._outermost() is module
        if is_outermost and not self._by_optimizer and not self._generates:
            self._samples.end_step(id(self._called))
            self._end(self._called)
        self._samples.note_call(arguments, is_outermost=is_outermost)

    def note_result(self, result: Any) -> None:
        """Notes the value that a module returned."""
        self._samples.note_result(result)

    def end_step(self, optimizer: Any) -> None:
        """Notes that the host has queued an optimizer's step."""
        number = self.number_of(optimizer)
        self._samples.end_training_step(number)
        steps = self._by_optimizer.get(number)
        if steps is None:
            line = where(self._simulation.runners)
            steps = _Steps("step", line, first_turn=self._turns)
            self._by_optimizer[number] = steps
        steps.last_turn = self._turns
        self._turns += 1
        self._end(steps)
        self._outermost = None

    def number_of(self, optimizer: Any) -> int:
        """Returns a number that no other optimizer gets.

        Python may give the `id` of an optimizer that was freed to a later optimizer, as in a
        program that makes a new optimizer for each fold of its data.
        """
        of, number = self._numbered.get(id(optimizer), (None, 0))
        if of is None or of() is not optimizer:
            number = next(self._numbers)
            self._numbered[id(optimizer)] = weakref.ref(optimizer), number
        return number

    def optimizers_of_steps(self) -> list[int]:
        """Returns the numbers of the optimizers whose steps are the program's, in their order.

        Optimizers that take turns have one such optimizer together. A program that trains with one
        optimizer after the other has several.
        """
        chosen = {id(_that_ends_steps(group)) for group in _groups(self._by_optimizer.values())}
        return [of for of, steps in self._by_optimizer.items() if id(steps) in chosen]

    def pace(self) -> Pace | None:
        """Returns the progress; None before the end of the second step."""
        steps = self._counted()
        if steps is None or steps.count < _FEWEST_TIMED:
            return None
        passed = steps.last_second - steps.first_second
        return Pace(steps.count, self._planned, passed / (steps.count - 1))

    def step(self, device: int, line_of: Callable[[int], str]) -> StepTime | None:
        """Returns the time of a usual step on a device; None if there were too few steps."""
        steps = self._steady()
        if steps is None:
            return None
        usual = steps.usual(device)
        begin, end = usual.begin, usual.end

        def taken(of: Callable[[Clock], float]) -> float:
            return (of(end.clocks[device]) - of(begin.clocks[device])) * 1e-9

        seconds = usual.on_device_ns(device) * 1e-9
        busy = min(seconds, taken(lambda clock: clock.busy_ns))
        compute = min(busy, taken(lambda clock: clock.compute_ns))
        communicating = max(0.0, min(busy, taken(lambda clock: clock.no_copies_ns)) - compute)
        collectives = taken(lambda clock: clock.collective_ns)
        crosses_network = taken(lambda clock: clock.network_ns) > 0
        host = taken(lambda clock: clock.host_ns)
        chip = chip_of(self._simulation.profiles[device].compute_capability)
        low, high = _OF_MEASURED if chip.has_measured_times else _OF_OTHERS
        of_collectives = _OF_NETWORKS if crosses_network else _OF_COLLECTIVES
        alone = [
            max(0.0, collectives * factor - (collectives - communicating))
            for factor in of_collectives
        ]
        samples = usual.samples
        return StepTime(
            what=steps.what,
            ends_at=steps.line if len(self._by_optimizer) > 1 else None,
            seconds=seconds,
            seconds_range=(
                min(seconds, max((busy - communicating) * low + alone[0], host * _OF_HOSTS[0])),
                max(seconds, (busy - communicating) * high + alone[1], host * _OF_HOSTS[1]),
            ),
            compute_seconds=compute,
            communicating_seconds=communicating,
            collectives_seconds=collectives,
            network_gbit_per_s=chip.network_gbit_per_s if crosses_network else None,
            copies_seconds=busy - compute - communicating,
            waiting_seconds=seconds - busy,
            host_seconds=host,
            kernels=end.clocks[device].kernels - begin.clocks[device].kernels,
            samples_per_second=samples / seconds if samples and seconds > 0 else None,
            lines=_lines(begin.stack_times[device], end.stack_times[device], line_of),
        )

    def _steady(self) -> _Steps | None:
        """Returns the steps that are timed: if there are several kinds, the most frequent kind."""
        if self._by_optimizer:
            kinds = [self._by_optimizer[of] for of in self.optimizers_of_steps()]
            steady = [steps for steps in kinds if steps.count >= FEWEST_STEPS]
            return max(reversed(steady), key=lambda steps: steps.count, default=None)
        others = (self._generated, self._called)
        return next((steps for steps in others if steps.count >= FEWEST_STEPS), None)

    def _counted(self) -> _Steps | None:
        """Returns the kind of steps by which the program's progress is counted."""
        if self._by_optimizer:
            return min(list(self._by_optimizer.values()), key=lambda steps: steps.count)
        return next((steps for steps in (self._generated, self._called) if steps.count), None)

    def _look_at_loops(self, steps: _Steps) -> None:
        runners = self._simulation.runners
        self._planned = planned_steps(sys._getframe(1), runners, steps.count)

    def _now(self) -> _End:
        library, devices = self._simulation.library, range(len(self._simulation.allocators))
        return _End(
            [library.clock(device) for device in devices],
            self._simulation.machine.now * 1e9,
            [library.stack_times(device) for device in devices],
            self._samples.so_far(),
        )

    def _note_evaluated(self) -> None:
        """Notes that an evaluation has ended: the next step of each optimizer begins here."""
        now = self._now() if self._by_optimizer else None
        for steps in self._by_optimizer.values():
            steps.resumed = now

    def _end(self, steps: _Steps) -> None:
        steps.finish(self._now())
        is_due = steps.last_second - self._looked_second >= _SECONDS_BETWEEN_LOOKS
        if is_due and steps is self._counted():
            self._looked_second = steps.last_second
            self._plan(steps)

    def _watch_generation(self, kind: type) -> None:
        """Counts each later call of a model's `generate` method (as in Transformers) as a step."""
        owner = next((base for base in kind.__mro__ if "generate" in vars(base)), None)
        if owner is None:
            return
        generate = vars(owner)["generate"]
        if not inspect.isfunction(generate) or hasattr(generate, "__wrapped_by_plimsoll__"):
            return
        if inspect.isgeneratorfunction(generate) or inspect.iscoroutinefunction(generate):
            return  # a generator or a coroutine returns before it has done its work

        begin = self._simulation.watchers.guarded("the begin of generate()", self._begin_generation)
        end = self._simulation.watchers.guarded("the end of generate()", self._end_generation)

        @functools.wraps(generate)
        def watched(*arguments: Any, **options: Any) -> Any:
            begin()
            self._generates += 1
            try:
                return generate(*arguments, **options)
            finally:
                self._generates -= 1
                end([*arguments, *options.values()])

        watched.__wrapped_by_plimsoll__ = True  # type: ignore[attr-defined]
        owner.generate = watched  # type: ignore[attr-defined]

    def _begin_generation(self) -> None:
        if self._generated.last is None:
            self._end(self._generated)

    def _end_generation(self, arguments: list[Any]) -> None:
        if not self._generates:
            self._samples.add(id(self._generated), batch_of(arguments))
            self._end(self._generated)


def _groups(optimizers: Iterable[_Steps]) -> list[list[_Steps]]:
    """Returns the groups of optimizers that take turns: one steps between two steps of another."""
    groups: list[list[_Steps]] = []
    last_turn = -1
    for steps in sorted(optimizers, key=lambda steps: steps.first_turn):
        if steps.first_turn > last_turn:
            groups.append([])
        groups[-1].append(steps)
        last_turn = max(last_turn, steps.last_turn)
    return groups


def _that_ends_steps(group: Sequence[_Steps]) -> _Steps:
    """Returns the optimizer that steps least often; among equals, the last one of each turn.

    An optimizer with very few steps counts only if all optimizers have so few.
    """
    regular = [steps for steps in group if steps.count >= FEWEST_STEPS]
    if regular:
        return min(reversed(regular), key=lambda steps: steps.count)
    return max(reversed(group), key=lambda steps: steps.count)


def _lines(
    before: Sequence[float], after: Sequence[float], line_of: Callable[[int], str]
) -> list[LineTime]:
    """Returns the lines whose work took the most time in a step.

    For each call stack, `before` gives the total time of its work when the step began, and `after`
    gives the total when the step ended. All times are in ns.
    """
    by_line: defaultdict[str, float] = defaultdict(float)
    for stack, total in enumerate(after):
        spent = total - (before[stack] if stack < len(before) else 0)
        if spent > 0:
            by_line[line_of(stack)] += spent
    return [
        LineTime(line, spent * 1e-9)
        for line, spent in sorted(by_line.items(), key=lambda row: -row[1])[:_LINES]
    ]
