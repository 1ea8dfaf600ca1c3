"""Notes the module calls of a step, each with its start and end, its time and its results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.torch.simulated.simulation import Simulation


@dataclass
class ModuleCall:
    """One call of one module while autograd records.

    Attributes:
        module: The module. This reference keeps the module alive.
        start: The number of events on the device when the call began.
        end: The number of events when the call ended.
        seconds: The time that the call's kernels take on the device.
        given: Addresses of the storages of the call's inputs.
        results: Addresses of the storages of the call's results.
        inner: The calls that the module made.
    """

    module: Any
    start: int
    end: int = 0
    seconds: float = 0.0
    given: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    inner: list[ModuleCall] = field(default_factory=list)


class StepCalls:
    """Notes the module calls of the current step. A new step discards the calls of earlier steps.

    Attributes:
        calls: The calls of outermost modules in the current step.
        device: The watched device.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._running: list[ModuleCall] = []
        self.calls: list[ModuleCall] = []
        self.device = 0

    @property
    def is_outermost(self) -> bool:
        """Whether no module is running, so that the next call is of an outermost module."""
        return not self._running

    def enter(self, module: Any, given: list[Any]) -> ModuleCall:
        """Notes the begin of a call."""
        if self.is_outermost:
            # torch.cuda.current_device() would initialize CUDA, which the program may not have done
            # yet.
            self.device = int(self._simulation.library.lib.plimsoll_current_device())
        call = ModuleCall(
            module, self.position(), seconds=self._busy(), given=list(addresses(given))
        )
        (self._running[-1].inner if self._running else self.calls).append(call)
        self._running.append(call)
        return call

    def leave(self, call: ModuleCall, result: Any) -> None:
        """Notes the end of a call, with its result."""
        while self._running and self._running.pop() is not call:
            pass  # this also ends inner calls that an error left open
        call.end = self.position()
        call.seconds = self._busy() - call.seconds
        call.results = list(addresses(result))

    def begin(self) -> None:
        """Begins a new step, and forgets the calls of the step before."""
        self.calls = []

    def position(self) -> int:
        """Returns the number of events on the device so far."""
        return int(self._simulation.allocators[self.device].engine.history_size)

    def _busy(self) -> float:
        return float(self._simulation.library.clock(self.device).busy_ns) * 1e-9


def addresses(value: Any, depth: int = 3) -> Iterator[int]:
    """Yields the addresses of the CUDA tensors' storages in a module's arguments or results."""
    if hasattr(value, "untyped_storage"):
        if getattr(value, "is_cuda", False):
            try:
                yield value.untyped_storage().data_ptr()
            except (RuntimeError, NotImplementedError):
                return
    elif depth and isinstance(value, list | tuple):
        for each in value:
            yield from addresses(each, depth - 1)
    elif depth and isinstance(value, dict):
        for each in value.values():
            yield from addresses(each, depth - 1)
