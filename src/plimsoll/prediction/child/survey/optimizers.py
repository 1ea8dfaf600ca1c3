"""Notes a script's optimizers: the lines that make and step them, and their memory."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from plimsoll.base.watchers import standing_in
from plimsoll.prediction.child.survey.own_bytes import own_bytes
from plimsoll.prediction.child.survey.places import innermost_place
from plimsoll.prediction.survey import OptimizerUse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from plimsoll.base.watchers import Watchers
    from plimsoll.prediction.survey import Place, Scalar


class _Optimizer:
    def __init__(self, optimizer: Any, made: Place | None, settings: dict[str, Scalar]) -> None:
        # This reference keeps the optimizer alive, which costs only the simulation's own memory.
        self.optimizer = optimizer
        self.made = made
        self.settings = settings
        self.stepped: Place | None = None
        self.gradient_bytes = 0
        self.steps = 0
        # The number of model calls that began while gradients of an earlier step were in memory.
        self.kept_gradients = 0


class Optimizers:
    """Observes every new optimizer, and its steps."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._optimizers: dict[int, _Optimizer] = {}

    def install(self, torch: ModuleType) -> None:
        """Begins to observe new optimizers."""
        base = torch.optim.Optimizer
        make = base.__init__

        note = self._watchers.guarded("optimizers that are made", self._note)

        def noted(optimizer: Any, *given: Any, **named: Any) -> None:
            make(optimizer, *given, **named)
            note(optimizer)

        base.__init__ = standing_in(make, noted)

    def _note(self, optimizer: Any) -> None:
        self._optimizers[id(optimizer)] = _Optimizer(
            optimizer, innermost_place(), dict(_settings(type(optimizer), optimizer.defaults))
        )

    def note_step(self, optimizer: Any) -> None:
        """Notes that an optimizer begins a step."""
        noted = self._optimizers.get(id(optimizer))
        if noted is None:
            return
        noted.steps += 1
        noted.stepped = noted.stepped or innermost_place()
        noted.gradient_bytes = max(noted.gradient_bytes, sum(_gradients(optimizer)))

    def note_call(self) -> None:
        """Notes that an outermost module is being called.

        Counts the call for each optimizer that has made a step and whose gradients are still in
        memory.
        """
        for noted in self._optimizers.values():
            if noted.steps and any(_gradients(noted.optimizer)):
                noted.kept_gradients += 1

    @property
    def any_made(self) -> bool:
        """Whether an optimizer exists yet."""
        return bool(self._optimizers)

    def uses(self) -> list[OptimizerUse]:
        """Returns the optimizers that made a step."""
        return [_use(noted) for noted in self._optimizers.values() if noted.steps]


def _settings(kind: type, defaults: dict[str, Any]) -> Iterator[tuple[str, Scalar]]:
    known = inspect.signature(kind).parameters
    for name, value in defaults.items():
        if name in known and (value is None or isinstance(value, int | float | str | bool)):
            yield name, value


def _use(noted: _Optimizer) -> OptimizerUse:
    optimizer = noted.optimizer
    state = [
        value
        for each in optimizer.state.values()
        for value in (each.values() if isinstance(each, dict) else ())
    ]
    settings = noted.settings
    kind = type(optimizer)
    return OptimizerUse(
        kind=f"{kind.__module__}.{kind.__qualname__}",
        made=noted.made,
        stepped=noted.stepped,
        settings=settings,
        parameter_bytes=sum(map(own_bytes, _parameters(optimizer))),
        gradient_bytes=noted.gradient_bytes,
        state_bytes=sum(own_bytes(each) for each in state if getattr(each, "is_cuda", False)),
        is_foreach=settings.get("foreach") is not False
        and "foreach" in settings
        and not settings.get("fused"),
        keeps_gradients=noted.kept_gradients >= max(1, noted.steps - 1),
    )


def _parameters(optimizer: Any) -> Iterator[Any]:
    return (p for group in optimizer.param_groups for p in group["params"] if p.is_cuda)


def _gradients(optimizer: Any) -> Iterator[int]:
    return (own_bytes(p.grad) for p in _parameters(optimizer) if p.grad is not None)
