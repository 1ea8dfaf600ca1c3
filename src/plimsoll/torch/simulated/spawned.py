"""Processes that a program spawns have simulated GPUs like its own, each its own memory.

`multiprocessing` sends a spawned process what to prepare before it imports the program. There goes
a note along whose very reading makes the GPUs, so they are there before PyTorch is.
"""

from __future__ import annotations

import multiprocessing.spawn
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class _Note:
    def __init__(self, begin: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._begin = begin
        self._arguments = arguments

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        return self._begin, self._arguments


def begin_spawned_with(begin: Callable[..., None], *arguments: Any) -> None:
    """Let every process that this one spawns call `begin` before it imports the program.

    Args:
        begin: A function of a module, which the new process imports.
        arguments: What it is called with; they are pickled.
    """
    get_preparation_data = multiprocessing.spawn.get_preparation_data

    def with_note(name: str) -> dict[str, Any]:
        return {**get_preparation_data(name), "simulated_gpus": _Note(begin, arguments)}

    multiprocessing.spawn.get_preparation_data = with_note
