"""Processes that a program spawns have simulated GPUs like its own, each its own memory.

`multiprocessing` sends a spawned process what to prepare before it imports the program. There goes
a note along whose very reading makes the GPUs, so they are there before PyTorch is.
"""

from __future__ import annotations

import multiprocessing.spawn
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Note:
    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return _simulate, (self._arguments,)


def simulate_in_spawned(arguments: Mapping[str, Any]) -> None:
    """Let every process that this one spawns make a `Simulation` of the same arguments."""
    get_preparation_data = multiprocessing.spawn.get_preparation_data

    def with_note(name: str) -> dict[str, Any]:
        return {**get_preparation_data(name), "simulated_gpus": _Note(arguments)}

    multiprocessing.spawn.get_preparation_data = with_note


def _simulate(arguments: Mapping[str, Any]) -> None:
    from plimsoll.session.recording import record_if_asked
    from plimsoll.torch.simulated.simulation import Simulation, running, start

    if running() is not None:
        return
    if "torch" in sys.modules:  # by a fork server, for all its children
        print(
            "plimsoll: this process has no simulated GPU, because PyTorch was imported before "
            "it began; use the start method spawn",
            file=sys.stderr,
        )
        return
    start(Simulation(**arguments), record_if_asked)
