"""Simulated GPUs for this process and those that it spawns; each tells about itself and records."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from plimsoll.session.environment import record_if_asked
from plimsoll.telemetry.publisher import publish
from plimsoll.torch.simulated.simulated_counters import SimulatedCounters
from plimsoll.torch.simulated.simulation import Simulation
from plimsoll.torch.simulated.spawned import begin_spawned_with
from plimsoll.torch.simulated.start import running, start

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from plimsoll.torch.simulated.setup import Setup

    Watch = Callable[[Simulation], None]


def simulate(
    simulation: Simulation,
    after_import: Callable[[ModuleType], None],
    watch: Watch | None = None,
) -> None:
    """Make the next `import torch` see the simulated GPUs.

    Args:
        simulation: The GPUs.
        after_import: Called with the module `torch` once it is ready.
        watch: For processes that are spawned: called there with the GPUs before they are seen. It
            is pickled.

    Raises:
        InputError: If PyTorch is imported already.
    """
    start(simulation, after_import)
    simulation.on_first_use(lambda: publish(SimulatedCounters(simulation)))
    begin_spawned_with(simulate_again, simulation.setup, watch)


def simulate_again(setup: Setup, watch: Watch | None = None) -> None:
    """In a process that was spawned: have GPUs like those of the process that spawned it.

    Args:
        setup: Of the `Simulation` there.
        watch: As `simulate` had it there.
    """
    if running() is not None:
        return
    if "torch" in sys.modules:  # by a fork server, for all its children
        print(
            "plimsoll: this process has no simulated GPU, because PyTorch was imported before "
            "it began; use the start method spawn",
            file=sys.stderr,
        )
        return
    simulation = Simulation(setup)
    if watch is not None:
        watch(simulation)
    simulate(simulation, record_if_asked, watch)
