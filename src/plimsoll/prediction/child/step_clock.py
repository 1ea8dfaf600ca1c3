"""Watches how long the steps of a simulated program take, on the simulated clock."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from plimsoll.prediction.parts import LineTime, StepTime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from plimsoll.torch.simulated.library import Clock
    from plimsoll.torch.simulated.simulation import Simulation

_LINES = 10
_FEWEST_ENDS = 3  # of steps: the first one plans, and makes what stays
# How far a measured time was from the simulated one (docs/predict.md): of the GPU's work on Hopper,
# for which its kernels were measured, on other cards, and of the host's, which differ by half.
_OF_HOPPER = (0.88, 1.3)
_OF_OTHERS = (0.7, 1.5)
_OF_HOSTS = (0.6, 1.6)


@dataclass(frozen=True)
class _End:
    """The end of a step: each device's clock, the machine's in ns, and the step's batch."""

    clocks: list[Clock]
    now_ns: float
    batch: int | None

    def on_device_ns(self, device: int) -> float:
        return max(self.now_ns, float(self.clocks[device].ends_ns))


@dataclass
class _Steps:
    """Steps of one kind, by their ends.

    Attributes:
        what: Of what a step is one.
        ends: In order.
        first_times: What each call stack had taken at the first of them, in ns, by device.
        last_times: And at the last.
    """

    what: str
    ends: list[_End] = field(default_factory=list)
    first_times: list[Sequence[float]] = field(default_factory=list)
    last_times: list[Sequence[float]] = field(default_factory=list)


class StepClock:
    """Notes what passed at the end of each step.

    A step is an optimizer's; in a program without one, a call of `generate`, or else a call of the
    outermost module.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._by_optimizer: dict[int, _Steps] = {}
        self._generated = _Steps("call of generate()")
        self._called = _Steps("call of the model")
        self._outermost: weakref.ref[Any] | None = None
        self._waits_for_tensor = False
        self._batch: int | None = None
        self._generates = 0

    def note_forward(self, module: Any, arguments: tuple[Any, ...]) -> None:
        """A module is called; the outermost one is the first of a step, and its calls add up."""
        if self._outermost is None or self._outermost() is None:
            self._outermost = weakref.ref(module)
            self._watch_generation(type(module))
        if self._outermost() is module:
            self._waits_for_tensor = True
            if not self._by_optimizer and not self._generates:
                self._end(self._called, self._batch)
                self._batch = None
        if not self._waits_for_tensor:
            return
        batch = _batch_of(arguments)
        if batch is not None:
            self._batch = (self._batch or 0) + batch
            self._waits_for_tensor = False

    def end_step(self, optimizer: Any) -> None:
        """An optimizer has queued its step."""
        steps = self._by_optimizer.setdefault(id(optimizer), _Steps("step"))
        self._end(steps, self._batch)
        self._outermost, self._batch, self._waits_for_tensor = None, None, False

    def step(self, device: int, line_of: Callable[[int], str]) -> StepTime | None:
        """What a step takes on a device, in the middle; None where there were too few."""
        steps = self._steady()
        if steps is None:
            return None
        ends = steps.ends[1:]
        pairs = list(pairwise(ends))

        def middle(of: Callable[[Clock], float]) -> float:
            return median(of(b.clocks[device]) - of(a.clocks[device]) for a, b in pairs) * 1e-9

        seconds = median(b.on_device_ns(device) - a.on_device_ns(device) for a, b in pairs) * 1e-9
        busy = min(seconds, middle(lambda clock: clock.busy_ns))
        compute = min(busy, middle(lambda clock: clock.compute_ns))
        host = middle(lambda clock: clock.host_ns)
        major = self._simulation.profiles[device].compute_capability[0]
        low, high = _OF_HOPPER if major == 9 else _OF_OTHERS
        known = [end.batch for end in ends[1:] if end.batch is not None]
        are_known = seconds > 0 and len(known) == len(pairs)
        return StepTime(
            what=steps.what,
            seconds=seconds,
            seconds_range=(
                min(seconds, max(busy * low, host * _OF_HOSTS[0])),
                max(seconds, busy * high, host * _OF_HOSTS[1]),
            ),
            compute_seconds=compute,
            copies_seconds=busy - compute,
            waiting_seconds=seconds - busy,
            host_seconds=host,
            kernels=round(middle(lambda clock: float(clock.kernels)) * 1e9),
            samples_per_second=median(known) / seconds if are_known else None,
            lines=_lines(steps, device, line_of),
        )

    def _steady(self) -> _Steps | None:
        # Where several optimizers take turns, a step is that of the one with the fewest.
        trained = [s for s in self._by_optimizer.values() if len(s.ends) >= _FEWEST_ENDS]
        if self._by_optimizer:
            return min(trained, key=lambda steps: len(steps.ends), default=None)
        others = (self._generated, self._called)
        return next((steps for steps in others if len(steps.ends) >= _FEWEST_ENDS), None)

    def _end(self, steps: _Steps, batch: int | None) -> None:
        count = len(self._simulation.allocators)
        clocks = [self._simulation.library.clock(device) for device in range(count)]
        steps.last_times = [self._simulation.library.stack_times(d) for d in range(count)]
        if not steps.ends:
            steps.first_times = steps.last_times
        steps.ends.append(_End(clocks, self._simulation.machine.now * 1e9, batch))

    def _watch_generation(self, kind: type) -> None:
        """Calls of `generate`, Transformers' loop over a model, are steps of their own."""
        owner = next((base for base in kind.__mro__ if "generate" in vars(base)), None)
        if owner is None:
            return
        generate = vars(owner)["generate"]
        if not inspect.isfunction(generate) or hasattr(generate, "__wrapped_by_plimsoll__"):
            return
        if inspect.isgeneratorfunction(generate) or inspect.iscoroutinefunction(generate):
            return  # which returns before its work

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
        if not self._generated.ends:
            self._end(self._generated, None)

    def _end_generation(self, arguments: list[Any]) -> None:
        if not self._generates:
            self._end(self._generated, _batch_of(arguments))


def _lines(steps: _Steps, device: int, line_of: Callable[[int], str]) -> list[LineTime]:
    by_line: defaultdict[str, float] = defaultdict(float)
    before = steps.first_times[device]
    for stack, total in enumerate(steps.last_times[device]):
        spent = total - (before[stack] if stack < len(before) else 0)
        if spent > 0:
            by_line[line_of(stack)] += spent
    return [
        LineTime(line, spent * 1e-9 / (len(steps.ends) - 1))
        for line, spent in sorted(by_line.items(), key=lambda row: -row[1])[:_LINES]
    ]


def _batch_of(arguments: Iterable[Any]) -> int | None:
    """The first dimension of the first tensor."""
    shapes = (getattr(each, "shape", None) for each in arguments)
    return next((int(shape[0]) for shape in shapes if isinstance(shape, tuple) and shape), None)
