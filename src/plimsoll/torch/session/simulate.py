"""Simulates GPUs in this process and in the processes that it starts."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from plimsoll.base.errors import InputError
from plimsoll.base.telemetry.publisher import publish
from plimsoll.torch.session.environment import watch_if_asked
from plimsoll.torch.session.inherited import begin_started_with
from plimsoll.torch.simulated.setup import Setup
from plimsoll.torch.simulated.simulated_counters import SimulatedCounters
from plimsoll.torch.simulated.simulation import Simulation
from plimsoll.torch.simulated.start import running, start

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_BAD_INPUT = 2


def simulate(
    simulation: Simulation,
    after_import: Callable[[ModuleType], None],
    begin: Callable[[dict[str, Any]], None] | None = None,
    values: dict[str, Any] | None = None,
) -> None:
    """Makes `import torch` see simulated GPUs, in this process and in those that it starts.

    Args:
        simulation: The GPUs.
        after_import: Called with the module `torch` once it is imported.
        begin: Called in each process that this one starts, before that process imports PyTorch. It
            has to call `simulate_started`. By default, the processes get the same GPUs.
        values: The argument of `begin`.

    Raises:
        InputError: If PyTorch is imported already.
    """
    _simulate_here(simulation, after_import)
    if begin is None:
        begin_started_with(_begin, asdict(simulation.setup))
    else:
        begin_started_with(begin, values or {})


def simulate_started(setup: Setup, watch: Callable[[Simulation], None] | None = None) -> None:
    """Simulates GPUs in a process whose parent process has simulated GPUs.

    If the simulation cannot begin, prints why and ends the process.

    Args:
        setup: The setup of the parent process's `Simulation`.
        watch: Called with the GPUs before PyTorch sees them.
    """
    if running() is not None:
        return
    try:
        simulation = Simulation(setup)
        simulation.pretended_world = None  # no rank is pretended: every rank has a process
        if watch is not None:
            watch(simulation)
        _simulate_here(simulation, watch_if_asked)
    except InputError as error:
        print(f"plimsoll: {error}", file=sys.stderr)
        sys.exit(_BAD_INPUT)


def _begin(setup: dict[str, Any]) -> None:
    simulate_started(Setup.from_dict(setup))


def _simulate_here(simulation: Simulation, after_import: Callable[[ModuleType], None]) -> None:
    start(simulation, after_import)
    simulation.on_first_use(lambda: publish(SimulatedCounters(simulation), simulation.snapshot))
