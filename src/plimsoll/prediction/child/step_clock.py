"""Watches how long the steps of a simulated program take, on the simulated clock."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from plimsoll.prediction.parts import LineTime, StepTime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plimsoll.torch.simulated.library import Clock
    from plimsoll.torch.simulated.simulation import Simulation

_LINES = 10
_FEWEST_STEPS = 2  # the first one plans, and makes what stays
# How far a measured time was from the simulated one (docs/predict.md): of the GPU's work on Hopper,
# for which its kernels were measured, on other cards, and of the host's, which differ by half.
_OF_HOPPER = (0.88, 1.3)
_OF_OTHERS = (0.7, 1.5)
_OF_HOSTS = (0.6, 1.6)


@dataclass(frozen=True)
class _Mark:
    """The end of a step: each device's clock, and the machine's, in ns."""

    clocks: list[Clock]
    now_ns: float
    batch: int | None

    def end_ns(self, device: int) -> float:
        return max(self.now_ns, float(self.clocks[device].ends_ns))


class StepClock:
    """Notes what passed at the end of each step, which is that of an optimizer."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._marks: dict[int, list[_Mark]] = {}
        self._first_times: list[float] = []
        self._outermost: int | None = None
        self._waits_for_tensor = False
        self._batch: int | None = None

    def note_forward(self, module: Any, arguments: tuple[Any, ...]) -> None:
        """A module is called; the outermost one is the first of a step, and its calls add up."""
        if self._outermost is None:
            self._outermost = id(module)
        if id(module) == self._outermost:
            self._waits_for_tensor = True
        if not self._waits_for_tensor:
            return
        for argument in arguments:
            shape: Sequence[int] = getattr(argument, "shape", ())
            if len(shape) > 0:
                self._batch = (self._batch or 0) + int(shape[0])
                self._waits_for_tensor = False
                return

    def end_step(self, optimizer: Any) -> None:
        """An optimizer has queued its step."""
        count = len(self._simulation.allocators)
        clocks = [self._simulation.library.clock(device) for device in range(count)]
        now = self._simulation.machine.now * 1e9
        marks = self._marks.setdefault(id(optimizer), [])
        marks.append(_Mark(clocks, now, self._batch))
        if len(marks) == 1 and len(self._marks) == 1:
            self._first_times = self._simulation.library.stack_times()
        self._outermost, self._batch, self._waits_for_tensor = None, None, False

    def step(self, device: int, line_of: Callable[[int], str]) -> StepTime | None:
        """What a step takes on a device, in the middle; None where there were too few."""
        # Where several optimizers take turns, a step is that of the one with the fewest.
        marks = min(
            (marks for marks in self._marks.values() if len(marks) > _FEWEST_STEPS),
            key=len,
            default=None,
        )
        if marks is None:
            return None
        pairs = list(pairwise(marks[1:]))

        def middle(of: Callable[[Clock], float]) -> float:
            return median(of(b.clocks[device]) - of(a.clocks[device]) for a, b in pairs) * 1e-9

        seconds = median(b.end_ns(device) - a.end_ns(device) for a, b in pairs) * 1e-9
        busy = min(seconds, middle(lambda clock: clock.busy_ns))
        compute = min(busy, middle(lambda clock: clock.compute_ns))
        host = middle(lambda clock: clock.host_ns)
        major = self._simulation.profiles[device].compute_capability[0]
        low, high = _OF_HOPPER if major == 9 else _OF_OTHERS
        batches = [mark.batch for mark in marks[1:]]
        known = [batch for batch in batches if batch is not None]
        are_known = seconds > 0 and len(known) == len(batches)
        return StepTime(
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
            samples_per_second=sum(known) / len(known) / seconds if are_known else None,
            lines=self._lines(len(next(iter(self._marks.values()))) - 1, line_of),
        )

    def _lines(self, steps: int, line_of: Callable[[int], str]) -> list[LineTime]:
        by_line: defaultdict[str, float] = defaultdict(float)
        before = self._first_times
        for stack, total in enumerate(self._simulation.library.stack_times()):
            spent = total - (before[stack] if stack < len(before) else 0)
            if spent > 0:
                by_line[line_of(stack)] += spent
        return [
            LineTime(line, spent * 1e-9 / max(1, steps))
            for line, spent in sorted(by_line.items(), key=lambda row: -row[1])[:_LINES]
        ]
