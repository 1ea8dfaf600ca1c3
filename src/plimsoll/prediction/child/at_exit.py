"""Reports what a simulated process uses of each GPU.

On a real GPU, a process makes the same report if the variable PLIMSOLL_REPORT is set.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plimsoll import _core
from plimsoll.base.printable import printable
from plimsoll.base.telemetry.exit_summaries import (
    ExitSummary,
    make_summary,
    named_process,
    report_at_exit,
)
from plimsoll.base.telemetry.job import rank_of_process
from plimsoll.base.torch_environment import WITHOUT_CACHE
from plimsoll.prediction.child.cards import card_files
from plimsoll.prediction.child.high_water import HighWaterMarks
from plimsoll.prediction.child.made_up_reads import MadeUpReads
from plimsoll.prediction.child.native_replay import NativeReplay
from plimsoll.torch.session.simulate import simulate_started
from plimsoll.torch.simulated.setup import Setup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.torch.simulated.simulation import Simulation


def summary_at_exit(
    simulation: Simulation, high_water: HighWaterMarks, to: str, cards: str | None
) -> None:
    """Makes this process, when it ends, report the memory that it used of each GPU.

    Args:
        simulation: The process's GPUs, before their first use.
        high_water: The high-water marks of the GPUs.
        to: The destination of the report, in the form of PLIMSOLL_REPORT.
        cards: The folder by which all processes of the program share the cards' memory; None if
            each process has cards of its own.
    """
    if cards is not None:
        simulation.share_cards(card_files(cards))
    simulation.keep_lines_of_assumptions()
    native = NativeReplay(simulation) if simulation.setup.allocator == "elastic" else None
    report_at_exit(
        lambda: _summaries(simulation, high_water, native), to, lambda: _notes(simulation)
    )


def begin_summarized(values: dict[str, Any]) -> None:
    """Simulates GPUs in this process, which the script started. The process reports their use.

    Args:
        values: A dictionary: "setup" has a `Setup` as a dictionary, and "to" and "cards" have the
            arguments of `summary_at_exit`.
    """

    def watch(simulation: Simulation) -> None:
        high_water = HighWaterMarks(simulation)
        simulation.after_import(lambda: high_water.install(sys.modules["torch"]))
        summary_at_exit(simulation, high_water, values["to"], values["cards"])

    simulate_started(Setup.from_dict(values["setup"]), watch)


def _summaries(
    simulation: Simulation, high_water: HighWaterMarks, native: NativeReplay | None
) -> list[ExitSummary]:
    """Returns a summary for each used GPU."""
    if not simulation.has_contexts:
        return []
    pinned_bytes = simulation.library.pinned_statistics().allocated_bytes.peak
    made_up = MadeUpReads.of(simulation)
    summaries = []
    for device in sorted(simulation.contexts):
        peak = high_water.of(device)
        card_bytes, processes = _use_of_card(simulation, device, high_water.card_bytes(device))
        figures = {
            "peak_allocated_bytes": peak.allocated_bytes,
            "peak_reserved_bytes": peak.reserved_bytes,
            "peak_shared_reserved_bytes": 0 if peak.shared is None else peak.shared.peak_bytes,
            "card_peak_bytes": card_bytes,
            "card_processes": processes,
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
                made_up_reads=len(made_up.lines),
                first_made_up_read=next(iter(made_up.lines), None),
            )
        )
    return summaries


def _use_of_card(simulation: Simulation, device: int, own_bytes: int) -> tuple[int, int | None]:
    """Returns the most that all processes used of a device's card, and how many used it so far.

    The number is None if the other processes are not known: the card could not be shared, or the
    script's own process has ended and removed the card's file. `own_bytes` is the most that this
    process used.
    """
    path = simulation.card_files.get(device)
    if path is None:
        return own_bytes, None
    try:
        card = _core.SharedCard(path)
    except RuntimeError:
        return own_bytes, None
    users = {process for process, most in card.users if most}
    if len(users) > 1:
        return max(own_bytes, card.together), len(users)
    return own_bytes, 1


def _notes(simulation: Simulation) -> Iterator[str]:
    """Yields what stderr says of this process beside the memory that it used."""
    who = named_process(_known(simulation.rank, rank_of_process()))
    text = MadeUpReads.of(simulation).text()
    if text is not None:
        yield who + printable(text)
    if simulation.is_caching_forbidden:
        yield who + WITHOUT_CACHE
    hidden = _unhidden_cards(simulation)
    if hidden is not None and not who:
        yield hidden


def _unhidden_cards(simulation: Simulation) -> str | None:
    """Returns a sentence if CUDA_VISIBLE_DEVICES would hide some of the GPUs on a real machine.

    Returns None if the variable names as many GPUs as are simulated. An empty value also says
    nothing: it hides the real GPUs of this machine.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = len(simulation.profiles)
    if not visible.strip() or len(visible.split(",")) >= count or not simulation.has_contexts:
        return None
    return (
        f"CUDA_VISIBLE_DEVICES={printable(visible)} hides no simulated GPU: the script saw "
        f"{count}, as --gpus says"
    )


def _known(rank: int | None, launched_as: int | None) -> int | None:
    return launched_as if rank is None else rank
