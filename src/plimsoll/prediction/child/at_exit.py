"""Reports what a simulated process uses of each GPU.

On a real GPU, a process makes the same report if the variable PLIMSOLL_REPORT is set.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plimsoll.base.telemetry.exit_summaries import (
    ExitSummary,
    make_summary,
    of_used_gpus,
    report_at_exit,
)
from plimsoll.prediction.child.high_water import HighWaterMarks
from plimsoll.prediction.child.native_replay import NativeReplay
from plimsoll.torch.session.simulate import simulate_started
from plimsoll.torch.simulated.setup import Setup

if TYPE_CHECKING:
    from plimsoll.torch.simulated.simulation import Simulation


def summary_at_exit(simulation: Simulation, high_water: HighWaterMarks, to: str) -> None:
    """Makes this process, when it ends, report the memory that it used of each GPU.

    Args:
        simulation: The process's GPUs, before their first use.
        high_water: The high-water marks of the GPUs.
        to: The destination of the report, in the form of PLIMSOLL_REPORT.
    """
    native = NativeReplay(simulation) if simulation.setup.allocator == "elastic" else None
    report_at_exit(lambda: _summaries(simulation, high_water, native), to)


def begin_summarized(values: dict[str, Any]) -> None:
    """Simulates GPUs in this process, which the script started. The process reports their use.

    Args:
        values: A dictionary: "setup" has a `Setup` as a dictionary, and "to" has the argument `to`
            of `summary_at_exit`.
    """

    def watch(simulation: Simulation) -> None:
        high_water = HighWaterMarks(simulation)
        simulation.after_import(lambda: high_water.install(sys.modules["torch"]))
        summary_at_exit(simulation, high_water, values["to"])

    simulate_started(Setup.from_dict(values["setup"]), watch)


def _summaries(
    simulation: Simulation, high_water: HighWaterMarks, native: NativeReplay | None
) -> list[ExitSummary]:
    """Returns a summary for each used GPU."""
    if not simulation.has_contexts:
        return []
    pinned_bytes = simulation.library.pinned_statistics().allocated_bytes.peak
    summaries = []
    for device in sorted(simulation.contexts):
        peak = high_water.of(device)
        figures = {
            "peak_allocated_bytes": peak.allocated_bytes,
            "peak_reserved_bytes": peak.reserved_bytes,
            "peak_shared_reserved_bytes": 0 if peak.shared is None else peak.shared.peak_bytes,
            "card_peak_bytes": high_water.card_bytes(device),
            "peak_pinned_bytes": pinned_bytes,
            "pinned_is_shared": simulation.machine.driver == "wddm",
        }
        if native is not None and (replayed := native.of(device)) is not None:
            figures["torch_peak_reserved_bytes"] = replayed.peak_reserved_bytes
            figures["torch_num_ooms"] = replayed.num_ooms
        summary = make_summary(simulation.allocator, device, figures)
        plan = simulation.plan_use(device)
        summaries.append(
            replace(
                summary,
                rank=_known(simulation.rank, summary.rank),
                plan=None if plan is None else plan.line(),
            )
        )
    return of_used_gpus(summaries)


def _known(rank: int | None, launched_as: int | None) -> int | None:
    return launched_as if rank is None else rank
