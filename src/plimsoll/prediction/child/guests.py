"""Finds ranks that use other ranks' cards. Each such card is reported as a cause of memory use."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any

from plimsoll.base.telemetry.job import launched_as
from plimsoll.prediction.child.cards import number_of_card
from plimsoll.prediction.child.found_causes import facts_of
from plimsoll.prediction.child.peak_contents import find_peak
from plimsoll.recordings.analysis.lines import source_line
from plimsoll.recordings.causes.cause import LEAST_SHARE, Notes
from plimsoll.recordings.causes.ranks_on_one_card import (
    OnOtherCard,
    on_other_card,
    ranks_on_one_card,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from plimsoll.prediction.child.cards import Card
    from plimsoll.prediction.child.peak_contents import Run
    from plimsoll.prediction.child.process_reports import ProcessReport
    from plimsoll.recordings.causes.cause import Cause
    from plimsoll.torch.simulated.simulation import Simulation


def note_other_cards(simulation: Simulation, run_of: Callable[[int], Run]) -> list[dict[str, Any]]:
    """Returns what this rank uses of each card that is not its own, as `OnOtherCard`.

    A rank's own card is the one whose number is its local rank. The list is empty for a process
    without a rank, for a rank without a card of its own, or if CUDA_VISIBLE_DEVICES renumbers the
    cards.

    Args:
        simulation: The GPUs.
        run_of: Returns the events of a device.
    """
    local = launched_as("LOCAL_RANK")
    local = simulation.rank if local is None else local
    if local is None or local >= len(simulation.profiles) or "CUDA_VISIBLE_DEVICES" in os.environ:
        return []

    def note(device: int) -> OnOtherCard:
        run = run_of(device)
        peak = find_peak(run, cache(lambda site: source_line(run.frames(site))))
        facts = facts_of(run, peak, device, Notes())
        return on_other_card(
            facts,
            simulation.context_bytes(device),
            of_thread=device in simulation.contexts_of_threads,
        )

    others = (device for device in simulation.contexts if number_of_card(device) != local)
    return [asdict(note(device)) for device in sorted(others)]


def causes_of_job(
    prediction: dict[str, Any], ranks: list[ProcessReport], cards: dict[str, Card]
) -> list[dict[str, Any]]:
    """Returns one rank's causes, and a cause for each card that several ranks share.

    A card is shared if other ranks use it beside the rank that owns it. No cause is added if these
    other ranks hold only little of the card's used memory.

    Args:
        prediction: The prediction of this rank, as a dictionary.
        ranks: The ranks.
        cards: The used cards.
    """
    found = [
        asdict(cause)
        for name, card in cards.items()
        if (cause := _cause_on(name, card, ranks)) is not None
        and cause.bytes >= LEAST_SHARE * card.together_bytes
    ]
    # Growth that holds more than the other ranks do comes first, then these ranks, then the rest.
    most = max((cause["bytes"] for cause in found), default=0)
    causes: list[dict[str, Any]] = prediction["causes"]
    if not found:
        return causes
    larger = [cause for cause in causes if cause["growth_bytes"] and cause["bytes"] > most]
    return [*larger, *found, *(cause for cause in causes if cause not in larger)]


def _cause_on(name: str, card: Card, ranks: list[ProcessReport]) -> Cause | None:
    """Returns the cause "ranks on one card" if ranks use the card of another rank; else None."""
    users = [each for each in ranks if each.rank is not None and each.process in card.takes]
    guests = {
        each.rank: noted
        for each in users
        if each.rank is not None and (noted := _noted(each, name)) is not None
    }
    owners = [each.rank for each in users if each.report and each.rank not in guests]
    if not guests or not owners or owners[0] is None:
        return None
    return ranks_on_one_card(owners[0], guests)


def _noted(rank: ProcessReport, name: str) -> OnOtherCard | None:
    """Returns a rank's note about the card whose file is `name`; None if there is no note."""
    return next((each for file, each in _all_noted(rank) if file == name), None)


def _all_noted(rank: ProcessReport) -> Iterator[tuple[str, OnOtherCard]]:
    names = dict(rank.cards)
    for values in (rank.report or {}).get("on_other_cards", []):
        yield names.get(values["device"], ""), OnOtherCard(**values)
