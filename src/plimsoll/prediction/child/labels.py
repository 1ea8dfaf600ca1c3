"""Watches a simulated program: which storages are parameters, gradients, optimizer state."""

from __future__ import annotations

import importlib
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

from plimsoll.prediction.child.compiled_parts import (
    outside_compilers,
    watch_calls,
    watch_compiled,
)
from plimsoll.prediction.child.peak_contents import Label
from plimsoll.prediction.child.step_clock import StepClock
from plimsoll.prediction.child.storages import storage_address
from plimsoll.torch.simulated.library import PHASES

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.torch.simulated.simulation import Simulation

_FORWARD, _OPTIMIZER = PHASES.index("forward"), PHASES.index("optimizer")


class BlockLabels:
    """Labels of each device's blocks, and where the program's steps end.

    Attributes:
        by_device: The labels of each device's blocks.
        steps: By device, the number of events at the end of each step.
        step_clock: How long the steps take.
    """

    def __init__(self, simulation: Simulation) -> None:
        simulation.observe()
        count = len(simulation.allocators)
        self.by_device: list[list[Label]] = [[] for _ in range(count)]
        self.steps: list[list[int]] = [[] for _ in range(count)]
        self.step_clock = StepClock(simulation)
        self._simulation = simulation
        self._set_phase = simulation.library.lib.plimsoll_set_phase
        self._parameters: dict[int, weakref.ref[Any]] = {}
        self._seen: set[tuple[int, int]] = set()
        self._steps_of: Counter[int] = Counter()  # by optimizer
        self._compiled: list[weakref.ref[Any]] = []  # modules, whose parts no hook sees
        self._is_lazy: Callable[[Any], bool] = lambda _: False

    def install(self, torch: ModuleType) -> None:
        """Hook into modules and optimizers."""
        self._simulation.watchers.guarded("modules and optimizers", self._install)(torch)

    def finish(self) -> None:
        """Label what only now has its final meaning, such as gradients of a step that failed."""
        self._simulation.watchers.guarded("the labels at the end", self._finish)()

    def _install(self, torch: ModuleType) -> None:
        guarded = self._simulation.watchers.guarded
        note_forward = guarded("the calls of a step", self.step_clock.note_forward)
        label_module = guarded("the tensors of modules", self._label_tensors)
        label_before = guarded("the tensors of optimizers", self._before_step)
        label_after = guarded("the state of optimizers", self._after_step)
        end_step = guarded("the time of steps", self.step_clock.end_step)

        def before_forward(module: Any, arguments: Any) -> None:
            note_forward(module, arguments)
            label_module(module)

        def before_step(optimizer: Any, *_: Any) -> None:
            self._set_phase(_OPTIMIZER)
            label_before(optimizer)

        def after_step(optimizer: Any, *_: Any) -> None:
            self._set_phase(_FORWARD)
            self._steps_of[id(optimizer)] += 1
            label_after(optimizer)
            end_step(optimizer)

        self._is_lazy = torch.nn.parameter.is_lazy
        optimizer = importlib.import_module("torch.optim.optimizer")
        before, after = outside_compilers(torch, before_step, after_step)
        optimizer.register_optimizer_step_pre_hook(before)
        optimizer.register_optimizer_step_post_hook(after)
        note_result = guarded("the results of modules", self.step_clock.note_result)
        watch_calls(torch, before_forward, note_result)
        self.step_clock.install(torch)
        watch_compiled(
            torch,
            self._simulation.watchers,
            self._compiled.append,
            before_step,
            after_step,
            lambda optimizer: self._steps_of[id(optimizer)],
        )

    def _finish(self) -> None:
        for compiled in self._compiled:
            module = compiled()
            for part in () if module is None else module.modules():
                self._label_tensors(part)
        for reference in self._parameters.values():
            parameter = reference()
            if parameter is not None:
                self._label(parameter, "parameters")
                if parameter.grad is not None:
                    self._label(parameter.grad, "gradients")

    def _label(self, tensor: Any, category: str) -> None:
        if not tensor.is_cuda or self._is_lazy(tensor):
            return
        device = tensor.device.index
        address = storage_address(tensor)
        if address:
            event = self._simulation.allocators[device].engine.history_size
            self.by_device[device].append(Label(event, address, category))

    def _label_tensors(self, module: Any) -> None:
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and self._is_lazy(tensor):  # `_finish` labels it
                self._parameters[id(tensor)] = weakref.ref(tensor)
        for tensor in module._parameters.values():
            if self._is_new(tensor):
                self._parameters[id(tensor)] = weakref.ref(tensor)
                self._label(tensor, "parameters")
        for tensor in module._buffers.values():
            if self._is_new(tensor):
                self._label(tensor, "parameters")

    def _is_new(self, tensor: Any) -> bool:
        """Whether this is a tensor with memory on a GPU that no module has shown yet."""
        if tensor is None or not tensor.is_cuda or self._is_lazy(tensor):
            return False
        key = (id(tensor), storage_address(tensor))
        if not key[1] or key in self._seen:
            return False
        self._seen.add(key)
        return True

    def _before_step(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._parameters[id(parameter)] = weakref.ref(parameter)
                self._label(parameter, "parameters")
                if parameter.grad is not None:
                    self._label(parameter.grad, "gradients")

    def _after_step(self, optimizer: Any) -> None:
        for device, allocator in enumerate(self._simulation.allocators):
            self.steps[device].append(allocator.engine.history_size)
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if hasattr(value, "untyped_storage"):
                    self._label(value, "optimizer_state")
