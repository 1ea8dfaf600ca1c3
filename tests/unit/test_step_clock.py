"""Tests the detection of steps, and the report of their time, without PyTorch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from plimsoll.base.watchers import Watchers
from plimsoll.prediction.child import step_clock
from plimsoll.prediction.child.step_clock import StepClock
from plimsoll.prediction.parts import StepTime
from plimsoll.torch.simulated.library import Clock


@dataclass
class FakeSimulation:
    """A stand-in for the simulation. A test says how long the GPU and the host work."""

    major: int = 9
    now: float = 0.0
    clocks: Clock = field(default_factory=Clock)
    watchers: Watchers = field(default_factory=Watchers)
    stacks: list[float] = field(default_factory=lambda: [0.0, 0.0])
    runners: tuple[str, ...] = ()

    @property
    def allocators(self) -> list[None]:
        return [None]

    @property
    def machine(self) -> Any:
        return self

    @property
    def library(self) -> Any:
        return self

    @property
    def profiles(self) -> list[Any]:
        return [SimpleNamespace(compute_capability=(self.major, 0))]

    def clock(self, _: int) -> Clock:
        return Clock.from_buffer_copy(self.clocks)

    def stack_times(self, _: int) -> list[float]:
        return list(self.stacks)

    def work(
        self, *, host_ms: float, compute_ms: float, copy_ms: float = 0, stack: int = 0
    ) -> None:
        self.now += host_ms / 1e3
        self.clocks.host_ns += host_ms * 1e6
        self.clocks.busy_ns += (compute_ms + copy_ms) * 1e6
        self.clocks.compute_ns += compute_ms * 1e6
        self.clocks.ends_ns = max(self.clocks.ends_ns, self.now * 1e9 - host_ms * 1e6)
        self.clocks.ends_ns += (compute_ms + copy_ms) * 1e6
        self.clocks.kernels += 5
        self.stacks[stack] += compute_ms * 1e6


def tensor(*shape: int) -> Any:
    return SimpleNamespace(shape=shape)


def step_of(clock: StepClock) -> StepTime:
    step = clock.step(0, lambda stack: f"train.py:{stack}")
    assert step is not None
    return step


class Model:
    """A stand-in for a module."""


class Optimizer:
    """A stand-in for an optimizer."""


def train(clock: StepClock, machine: FakeSimulation, optimizer: object, host_ms: float) -> None:
    model, layer = Model(), Model()
    clock.note_forward(model, (tensor(32, 10),))
    clock.note_forward(layer, (tensor(320, 1),))
    machine.work(host_ms=host_ms, compute_ms=8, copy_ms=2)
    clock.end_step(optimizer)


def test_a_step_is_the_middle_one_between_the_ends_of_an_optimizers() -> None:
    machine, optimizer = FakeSimulation(), Optimizer()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for host_ms in (500, 1, 1, 1, 1):
        train(clock, machine, optimizer, host_ms)
    step = step_of(clock)
    assert step.what == "step"
    assert step.seconds == pytest.approx(0.010)
    assert step.compute_seconds == pytest.approx(0.008)
    assert step.copies_seconds == pytest.approx(0.002)
    assert step.waiting_seconds == pytest.approx(0)
    assert step.host_seconds == pytest.approx(0.001)
    assert step.samples_per_second == pytest.approx(3200)
    assert step.kernels == 5
    assert step.seconds_range[0] < step.seconds < step.seconds_range[1]


def test_where_the_gpu_waits_for_the_host_the_host_decides() -> None:
    machine, optimizer = FakeSimulation(), Optimizer()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for _ in range(5):
        train(clock, machine, optimizer, 40)
    step = step_of(clock)
    assert step.seconds == pytest.approx(0.040)
    assert step.waiting_seconds == pytest.approx(0.030)
    assert list(step.seconds_range) == pytest.approx([0.024, 0.064])


def test_the_range_is_wider_on_cards_that_were_not_measured() -> None:
    ranges = {}
    for major in (8, 9):
        machine, optimizer = FakeSimulation(major=major), Optimizer()
        clock = StepClock(machine)  # type: ignore[arg-type]
        for _ in range(4):
            train(clock, machine, optimizer, 1)
        ranges[major] = step_of(clock).seconds_range
    assert ranges[8][0] < ranges[9][0]
    assert ranges[9][1] < ranges[8][1]


def test_two_steps_are_too_few() -> None:
    machine, optimizer = FakeSimulation(), Optimizer()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for _ in range(2):
        train(clock, machine, optimizer, 1)
    assert clock.step(0, str) is None


def test_where_optimizers_take_turns_a_step_is_one_of_the_rarer() -> None:
    machine, often, rarely = FakeSimulation(), Optimizer(), Optimizer()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for _ in range(5):
        for optimizer in (often, often, rarely):
            train(clock, machine, optimizer, 1)
    step = step_of(clock)
    assert step.seconds == pytest.approx(0.030)
    assert step.ends_at is not None
    assert "test_step_clock.py" in step.ends_at
    assert clock.optimizers_of_steps() == [clock.number_of(rarely)]


def test_of_optimizers_that_step_equally_often_the_last_one_ends_a_step() -> None:
    machine, first, second = FakeSimulation(), Optimizer(), Optimizer()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for _ in range(3):
        for optimizer in (first, second):
            train(clock, machine, optimizer, 1)
    assert clock.optimizers_of_steps() == [clock.number_of(second)]


def test_an_optimizer_that_stepped_once_ends_no_steps_of_others() -> None:
    machine, once, regular = FakeSimulation(), Optimizer(), Optimizer()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for optimizer in (regular, once, regular, regular):
        train(clock, machine, optimizer, 1)
    assert clock.optimizers_of_steps() == [clock.number_of(regular)]


def test_optimizers_of_one_training_after_another_both_end_steps() -> None:
    machine, early, late = FakeSimulation(), Optimizer(), Optimizer()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for optimizer in [early] * 5 + [late] * 3:
        train(clock, machine, optimizer, 1 if optimizer is early else 40)
    assert clock.optimizers_of_steps() == [clock.number_of(early), clock.number_of(late)]
    assert step_of(clock).seconds == pytest.approx(0.010)


def test_an_optimizer_with_the_id_of_a_freed_one_is_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folds = [Optimizer() for _ in range(4)]

    def reused(each: object) -> int:
        return folds.index(each) % 2 if isinstance(each, Optimizer) else id(each)

    monkeypatch.setattr(step_clock, "id", reused, raising=False)
    machine = FakeSimulation()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for optimizer in folds:
        for _ in range(3):
            train(clock, machine, optimizer, 1)
    assert clock.optimizers_of_steps() == [0, 1, 2, 3]


class Loader:
    """A stand-in for a loader's iterator, whose batches have no known size."""

    _auto_collation = False


def evaluate(clock: StepClock, machine: FakeSimulation) -> None:
    pytest.importorskip("torch")  # which finds the tensors of a batch
    loader = Loader()
    for _ in range(3):
        clock._samples._note_batch(loader, ())
        clock.note_forward(Model(), (tensor(500, 10),))
        machine.work(host_ms=1, compute_ms=70)
    clock._samples._leave_evaluated(loader)


def test_an_evaluation_in_every_step_counts_neither_in_its_time_nor_in_its_samples() -> None:
    machine, optimizer = FakeSimulation(), Optimizer()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for _ in range(5):
        train(clock, machine, optimizer, 1)
        clock._has_gradients = lambda: False
        evaluate(clock, machine)
        clock._has_gradients = lambda: True
    step = step_of(clock)
    assert step.seconds == pytest.approx(0.010)
    assert step.samples_per_second == pytest.approx(3200)


def test_of_steps_with_and_without_an_evaluation_one_without_is_taken() -> None:
    machine, optimizer = FakeSimulation(), Optimizer()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for number in range(12):
        train(clock, machine, optimizer, 1)
        machine.work(host_ms=0, compute_ms=3)  # work after the step, such as averaging weights
        if number > 2:
            evaluate(clock, machine)
    assert step_of(clock).seconds == pytest.approx(0.013)


def test_a_larger_batch_without_gradients_is_no_sample_of_a_step() -> None:
    machine, optimizer = FakeSimulation(), Optimizer()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for _ in range(4):
        clock._has_gradients = lambda: False
        clock.note_forward(Model(), (tensor(500, 10),))
        clock._has_gradients = lambda: True
        train(clock, machine, optimizer, 1)
    assert step_of(clock).samples_per_second == pytest.approx(3200)


def test_without_an_optimizer_a_step_is_a_call_of_the_outermost_module() -> None:
    machine, model, layer = FakeSimulation(), Model(), Model()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for _ in range(6):
        clock.note_forward(model, (tensor(4, 10),))
        clock.note_forward(layer, (tensor(40, 1),))
        machine.work(host_ms=1, compute_ms=5)
    step = step_of(clock)
    assert step.what == "call of the model"
    assert step.seconds == pytest.approx(0.005)
    assert step.samples_per_second == pytest.approx(800)


def test_generating_is_a_step_a_call() -> None:
    machine = FakeSimulation()
    clock = StepClock(machine)  # type: ignore[arg-type]

    class Generating:
        def generate(self, prompt: Any) -> str:
            for _ in range(10):
                clock.note_forward(self, (prompt,))
                machine.work(host_ms=1, compute_ms=2)
            return "text"

    model = Generating()
    assert [model.generate(tensor(8, 5)) for _ in range(5)] == ["text"] * 5
    step = step_of(clock)
    assert step.what == "call of generate()"
    assert step.seconds == pytest.approx(0.020)
    assert step.samples_per_second == pytest.approx(400)
    assert step.kernels == 50


def test_lines_are_those_that_take_the_most_of_the_steps_after_the_first() -> None:
    machine, optimizer = FakeSimulation(), Optimizer()
    clock = StepClock(machine)  # type: ignore[arg-type]
    machine.work(host_ms=1, compute_ms=500, stack=0)
    for _ in range(4):
        machine.work(host_ms=1, compute_ms=1, stack=0)
        machine.work(host_ms=1, compute_ms=3, stack=1)
        clock.end_step(optimizer)
    lines = step_of(clock).lines
    assert [line.line for line in lines] == ["train.py:1", "train.py:0"]
    assert [line.seconds for line in lines] == pytest.approx([0.003, 0.001])


def test_a_step_as_data_comes_back() -> None:
    machine, optimizer = FakeSimulation(), Optimizer()
    clock = StepClock(machine)  # type: ignore[arg-type]
    for _ in range(4):
        train(clock, machine, optimizer, 1)
    step = step_of(clock)
    assert StepTime.from_dict(asdict(step)) == step
