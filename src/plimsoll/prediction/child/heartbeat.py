"""Reports the progress of a slow script, and the time left, on stderr."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from plimsoll.base.printable import printable
from plimsoll.base.units import format_count, format_duration, format_seconds, format_size
from plimsoll.torch.simulated.program_frames import where

if TYPE_CHECKING:
    from plimsoll.prediction.child.labels import BlockLabels
    from plimsoll.prediction.child.step_clock import Pace
    from plimsoll.torch.simulated.simulation import Simulation

_SECONDS = 10


def beat(simulation: Simulation, labels: BlockLabels) -> None:
    """Begins to report the progress every ten seconds.

    Args:
        simulation: The GPUs of this process.
        labels: Provides the clock that times the script's steps, and the limit on their number.
    """
    run = simulation.watchers.guarded("where the script is", _run)
    threading.Thread(target=run, args=(simulation, labels), daemon=True).start()


def _run(simulation: Simulation, labels: BlockLabels) -> None:
    began = time.monotonic()
    while not simulation.is_over:
        time.sleep(_SECONDS)
        if simulation.is_over:
            return
        text = _text(simulation, labels, time.monotonic() - began)
        print(printable(text), file=sys.stderr, flush=True)


def _text(simulation: Simulation, labels: BlockLabels, seconds: float) -> str:
    pace = labels.step_clock.pace()
    if pace is None:
        events = sum(allocator.engine.history_size for allocator in simulation.allocators)
        how_far = format_count(events, "event")
    else:
        how_far = pace_text(pace)
    peak = max(allocator.max_memory_reserved() for allocator in simulation.allocators)
    shorter = ", --steps N a shorter run" if labels.step_limit.would_help else ""
    return (
        f"plimsoll: after {seconds:.0f} s at {where(simulation.runners)}: {how_far}, peak reserved "
        f"{format_size(peak)}; Ctrl-C gives the answer so far{shorter}"
    )


def pace_text(pace: Pace) -> str:
    """Returns a text for the user about the script's steps.

    It gives the number of completed steps. If the total is known, it also gives the total and the
    time left; otherwise it gives the time for each step.
    """
    if pace.planned is None:
        return f"step {pace.done:,}, {format_seconds(pace.seconds_each)} each"
    left = (pace.planned - pace.done) * pace.seconds_each
    return f"step {pace.done:,} of {pace.planned:,}, about {format_duration(left)} left"
