"""Frees the tensors in reference cycles that a compilation leaves behind."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


class Leftovers:
    """Collects reference cycles at a fixed point, so that every run has the same memory.

    The tensors in the cycles keep their GPU memory until Python collects garbage. In a first
    run, compilation makes many objects, so Python collects soon. In a run that finds its graphs in
    a cache, Python collects later. So plimsoll switches Python's collector off during a
    compilation, and collects all garbage when a compiled graph first requests memory.
    """

    def __init__(self) -> None:
        self._are_there = False
        self._is_held_off = False

    def note(self, module: ModuleType, execute: Callable[[], None]) -> None:
        """Loads `torch._dynamo.callback`, and learns from it when compilations begin and end."""
        execute()
        # A registered callback would be lost when PyTorch resets the handler. So plimsoll replaces
        # the handler's methods.
        handler = module.callback_handler
        handler.run_start_callbacks = _first(self._begin, handler.run_start_callbacks)
        handler.run_end_callbacks = _first(self._end, handler.run_end_callbacks)

    def _begin(self) -> None:
        if gc.isenabled():
            self._is_held_off = True
            gc.disable()

    def _end(self) -> None:
        if self._is_held_off:
            self._is_held_off = False
            gc.enable()
        self._are_there = True

    def collect(self) -> None:
        """Collects the cycles if a compilation has ended since the last call of this method."""
        if self._are_there:
            self._are_there = False
            gc.collect()


def _first(action: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        action()
        return function(*arguments, **named)

    return call
