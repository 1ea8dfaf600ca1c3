"""Keeps an optimizer's state in shared memory, which is host memory that the GPU uses over the bus.

The state is read and written once in each step, for which the bus is fast enough.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from plimsoll.base.units import format_count, format_size
from plimsoll.engine.current import check_elastic
from plimsoll.offloading.tiers.regions import region

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_SMALLEST = 64 * 1024


class OptimizerPlacement:
    """Moves an optimizer's new state to shared memory until `remove` is called.

    Made by `plimsoll.place_optimizer`; see docs/tiers.md.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        self._optimizer = optimizer
        self._name = name
        self._moved = WeakIdKeyDictionary()
        self._parameters = 0  # the number of parameters with state at the last check
        self._move()
        self._hooks: list[RemovableHandle] = [
            optimizer.register_step_pre_hook(lambda *_: self._make_new()),
            optimizer.register_step_post_hook(lambda *_: self._move_new()),
            optimizer.register_load_state_dict_post_hook(lambda *_: self._move()),
        ]

    def remove(self) -> None:
        """Ends the placement: new state stays on the card, moved state stays in shared memory."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def __str__(self) -> str:
        kept = [
            value
            for state in self._optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor) and value in self._moved
        ]
        size = format_size(sum(tensor.nbytes for tensor in kept))
        ended = "" if self._hooks else "; ended"
        return (
            f"{type(self._optimizer).__name__}: {size} of state in shared memory, in "
            f"{format_count(len(kept), 'tensor')}, region {self._name!r}{ended}"
        )

    def __repr__(self) -> str:
        return f"<OptimizerPlacement {self}>"

    def _make_new(self) -> None:
        """Creates the state that the next step needs, directly in shared memory.

        PyTorch's optimizers create state in `_init_group`. The state of an optimizer without this
        function moves after the step that created it.
        """
        optimizer = self._optimizer
        make = getattr(optimizer, "_init_group", None)
        if make is None or len(optimizer.state) >= len(self._with_gradient()):
            return
        before = set(optimizer.state)
        lists = len(inspect.signature(make).parameters) - 1
        with region(self._name, prefer="shared"):
            for group in optimizer.param_groups:
                large = [each for each in group["params"] if each.nbytes >= _SMALLEST]
                make({**group, "params": large}, *([] for _ in range(lists)))
        for parameter in optimizer.state.keys() - before:
            state = optimizer.state[parameter]
            for key, value in state.items():
                if self._is_meant(value):
                    self._moved[value] = True
                elif isinstance(value, torch.Tensor) and value.is_cuda:
                    state[key] = value.clone()

    def _with_gradient(self) -> list[torch.Tensor]:
        groups = self._optimizer.param_groups
        return [each for group in groups for each in group["params"] if each.grad is not None]

    def _move_new(self) -> None:
        if len(self._optimizer.state) != self._parameters:
            self._move()

    def _move(self) -> None:
        self._parameters = len(self._optimizer.state)
        for state in self._optimizer.state.values():
            for key, value in state.items():
                if self._is_meant(value):
                    state[key] = self._copy(value)

    def _is_meant(self, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor)
            and value.is_cuda
            and value.nbytes >= _SMALLEST
            and value not in self._moved
        )

    def _copy(self, value: torch.Tensor) -> torch.Tensor:
        with region(self._name, prefer="shared"):
            moved = torch.empty_like(value)
        moved.copy_(value)
        self._moved[moved] = True
        return moved


def place_optimizer(
    optimizer: torch.optim.Optimizer, name: str = "optimizer"
) -> OptimizerPlacement:
    """Keeps an optimizer's state in shared memory, also the state that later steps create.

    Existing state moves during this call. State made by the first step is allocated in shared
    memory. State from `load_state_dict` moves after the load. Tensors below 64 KiB stay on the
    card. The optimizer's kernels then read and write the state over the bus, in place. This works
    with any optimizer that keeps its state in `optimizer.state`.

    >>> optimizer = torch.optim.AdamW(model.parameters())  # doctest: +SKIP
    >>> plimsoll.place_optimizer(optimizer)  # doctest: +SKIP

    Args:
        optimizer: An optimizer with PyTorch's interface.
        name: The name of the `plimsoll.region` that gets the state.

    Raises:
        InputError: If plimsoll's elastic allocator is not installed.
    """
    check_elastic()
    return OptimizerPlacement(optimizer, name)
