"""Says on stderr where a script is that takes its time."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from plimsoll.base.printable import printable
from plimsoll.base.units import format_count, format_size
from plimsoll.torch.simulated.program_frames import where

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation

_FIRST_SECONDS = 15
_MOST_SECONDS = 240


def beat(simulation: Simulation) -> None:
    """From now on: after 15 s, 30 s, 60 s, …, at least every four minutes."""
    run = simulation.watchers.guarded("where the script is", _run)
    threading.Thread(target=run, args=(simulation,), daemon=True).start()


def _run(simulation: Simulation) -> None:
    began, wait = time.monotonic(), _FIRST_SECONDS
    while not simulation.is_over:
        time.sleep(wait)
        if simulation.is_over:
            return
        wait = min(2 * wait, _MOST_SECONDS) if wait != _FIRST_SECONDS else _FIRST_SECONDS * 2
        print(printable(_text(simulation, time.monotonic() - began)), file=sys.stderr, flush=True)


def _text(simulation: Simulation, seconds: float) -> str:
    events = sum(allocator.engine.history_size for allocator in simulation.allocators)
    peak = max(allocator.max_memory_reserved() for allocator in simulation.allocators)
    return (
        f"plimsoll: after {seconds:.0f} s at {where(simulation.runners)}: "
        f"{format_count(events, 'event')}, peak reserved {format_size(peak)}; "
        "Ctrl-C gives the answer so far"
    )
