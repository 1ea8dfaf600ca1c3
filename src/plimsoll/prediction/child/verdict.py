"""Decides whether all processes of a program fit on their cards together."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from plimsoll.base.units import format_size
from plimsoll.prediction.allocator_need import AllocatorNeed
from plimsoll.prediction.assumed import ENDED_BY_SIGNAL, Assumed
from plimsoll.prediction.child.allocator_needs import of_all
from plimsoll.prediction.child.process_reports import card_of
from plimsoll.prediction.child.serving_ranks import lacks_memory

if TYPE_CHECKING:
    from plimsoll.prediction.child.cards import Card
    from plimsoll.prediction.child.process_reports import ProcessReport
    from plimsoll.prediction.request import Request

SEVERAL_PROCESSES = "several processes use one card"


def fullest(
    own: ProcessReport,
    reports: list[ProcessReport],
    ranks: list[ProcessReport],
    cards: dict[str, Card],
) -> tuple[ProcessReport, dict[str, Any] | None]:
    """Returns the process whose figures the report shows, and its prediction.

    In a job this is the rank with the least headroom, otherwise the process with the most memory on
    the fullest card. The prediction is None if no process could report.

    Args:
        own: The program's own process.
        reports: The reports of all processes that used a GPU.
        ranks: The ranks among the processes.
        cards: The cards that the program used.
    """
    if known := [each for each in ranks if each.prediction]:
        most = max(known, key=lambda each: _lack_of_room(each, cards))
        return most, most.prediction
    card = max(cards.values(), key=lambda each: each.together_bytes, default=None)
    users = [each for each in reports if card is not None and each.process in card.takes]
    if card is not None and users:
        most = max(users, key=lambda each: (card.takes[each.process], _peaks(each)))
    else:
        most = max(reports, key=_peaks)
    if most.prediction is not None:
        return most, most.prediction
    if card is None or most.process not in card.takes:
        return most, None
    return most, _of_killed(own, most, card.takes[most.process], cards)


def verdict(
    found: dict[str, Any], reports: list[ProcessReport], cards: dict[str, Card], request: Request
) -> dict[str, Any]:
    """Returns the entries of a `PredictionParts` that depend on all processes, such as `fits`.

    Args:
        found: The prediction of one process. Its `out_of_memory` is set if any process ran out of
            memory.
        reports: The reports of all processes that used a GPU.
        cards: The cards that the program used.
        request: The request that the program ran for.
    """
    crowded = [card for card in cards.values() if len(card.takes) > 1 or _has_killed(card, reports)]
    worst = max(crowded, key=lambda card: card.together_bytes, default=None)
    room = found["total_bytes"] + (found["shared"]["total_bytes"] if found["shared"] else 0)
    headroom, used = found["headroom_bytes"], found["device_used_bytes"]
    if worst is not None and room - worst.together_bytes <= headroom:
        headroom, used = room - worst.together_bytes, worst.together_bytes
    limited = [
        each for each in map(_prediction, reports) if each and each["limit_bytes"] is not None
    ]
    headroom = min([headroom, *(each["headroom_bytes"] for each in limited)])
    why = None
    if found["out_of_memory"] is not None or lacks_memory(found["serving"]):
        fits: bool | None = False
    else:
        why = _why_unknown(found, reports, crowded, cards, request)
        fits = None if why else True
    no_others = found["no_other_cards"] or next(
        (each.prediction["no_other_cards"] for each in reports if each.prediction), None
    )
    if worst is None:
        needs = of_all([_needs(each) for each in map(_prediction, reports) if each])
    else:
        needs = []  # a replay of one process does not show the memory of several
        is_shared = any(len(card.takes) > 1 for card in crowded)
        no_others = SEVERAL_PROCESSES if is_shared else "a process was ended by a signal"
    return {
        "fits": fits,
        "why_unknown": why,
        "headroom_bytes": headroom,
        "device_used_bytes": used,
        "no_other_cards": no_others if fits else None,
        "needs": [asdict(need) for need in needs],
        "other_cards": [] if no_others or not fits else _on_other_cards(reports),
    }


def _needs(found: dict[str, Any]) -> list[AllocatorNeed]:
    return [AllocatorNeed(**need) for need in found["needs"]]


def _on_other_cards(reports: list[ProcessReport]) -> list[dict[str, Any]]:
    """Returns the `CardVerdict` of each card besides the predicted card.

    A card fits if each process fits on it, and may not fit if one of the processes may not.
    """
    verdicts = [each["other_cards"] for each in map(_prediction, reports) if each]
    return [
        {
            **of_card[0],
            "fits": all(one["fits"] for one in of_card),
            "headroom_bytes": min(one["headroom_bytes"] for one in of_card),
            "may_not_fit": all(one["fits"] for one in of_card)
            and any(one["may_not_fit"] for one in of_card),
        }
        for of_card in zip(*verdicts, strict=True)
    ]


def _why_unknown(
    found: dict[str, Any],
    reports: list[ProcessReport],
    crowded: list[Card],
    cards: dict[str, Card],
    request: Request,
) -> str | None:
    """Returns why it is unknown whether all processes fit; None if it is known."""
    for each in reports:
        if each.prediction and each.prediction["may_fail_with_bytes"]:
            return _with_largest_workspaces(each.prediction)
        if each.report is None and not any(each.process in card.takes for card in cards.values()):
            return (
                f"a signal ended process {each.process}, which used a GPU, before it reported how "
                "much memory it took"
            )
        noted = dict(each.cards)
        used = each.prediction["devices"] if each.prediction else []
        if len(reports) > 1 and any(use["device"] not in noted for use in used):
            return f"process {each.process} could not record how much of its card it took"
    if any(not card.is_complete for card in crowded):
        return "more processes used one card than plimsoll can count"
    is_part = request.ranks is not None
    if is_part and (crowded or (request.nproc_per_node or 1) > len(request.setup.gpus)):
        return "ranks share a card, and not all of them ran"
    if found["shared"] is not None:
        if crowded and any(each["shared_used_bytes"] for each in map(_prediction, reports) if each):
            return "several processes spill into host memory, and plimsoll does not add them up"
        return None
    for card in crowded:
        if card.together_bytes <= found["total_bytes"] < card.at_most_bytes:
            return (
                f"the processes on GPU {card.device} took turns and had at most "
                f"{format_size(card.together_bytes)} at the same time, but they take "
                f"{format_size(card.at_most_bytes)} if their peaks coincide"
            )
    return None


def _with_largest_workspaces(found: dict[str, Any]) -> str:
    more = found["peak_reserved_range_bytes"][1] - found["peak_reserved_bytes"]
    most = format_size(found["device_used_bytes"] + more)
    whole = format_size(found["total_bytes"] + found["used_bytes"])
    return f"cuDNN's workspaces may be so large that it takes {most} of the card's {whole}"


def _prediction(reported: ProcessReport) -> dict[str, Any] | None:
    return reported.prediction


def _has_killed(card: Card, reports: list[ProcessReport]) -> bool:
    return any(each.report is None and each.process in card.takes for each in reports)


def _peaks(reported: ProcessReport) -> tuple[int, int]:
    found = reported.prediction
    return (
        (-1, -1) if found is None else (found["peak_reserved_bytes"], found["peak_allocated_bytes"])
    )


def _lack_of_room(reported: ProcessReport, cards: dict[str, Card]) -> tuple[bool, int, int, int]:
    """Returns a sort key, larger for a rank that lacks more memory.

    Ranks that are not known to fit have larger keys than ranks that fit. In each of these two
    groups, a rank with less headroom has a larger key.
    """
    found, card = reported.prediction, card_of(reported, cards)
    assert found is not None
    assert reported.rank is not None
    headroom, allocated = found["headroom_bytes"], found["peak_allocated_bytes"]
    if card is not None and len(card.takes) > 1:
        headroom = min(headroom, found["total_bytes"] - card.together_bytes)
    return not found["fits"], -headroom, allocated, -reported.rank


def _of_killed(
    own: ProcessReport, killed: ProcessReport, taken: int, cards: dict[str, Card]
) -> dict[str, Any]:
    """Returns a prediction for a killed process, which left none.

    The memory figures follow from `taken`. The other entries are empty, or are those of the
    program's own process.

    Args:
        own: The program's own process.
        killed: The killed process.
        taken: The most that nvidia-smi would have shown of the process on one card.
        cards: The cards that the program used.
    """
    assert own.report is not None
    found = own.report["prediction"]
    context = own.report["context_bytes"]
    reserved = max(0, taken - context)
    return {
        **found,
        "context_bytes": context,
        "peak_allocated_bytes": reserved,
        "peak_allocated_range_bytes": (0, reserved),
        "peak_reserved_bytes": reserved,
        "device_used_bytes": context + reserved,
        "headroom_bytes": found["total_bytes"] - context - reserved,
        "needs": [],
        "nccl_bytes": 0,
        "nccl_range_bytes": None,
        "by_category": {**dict.fromkeys(found["by_category"], 0), "other": reserved},
        "top_lines": [],
        "step_peaks_bytes": [],
        "step_seconds": None,
        "step_seconds_range": None,
        "step": None,
        "timeline": None,
        "compiled": None,
        "limit_bytes": None,
        "assumptions": [
            asdict(Assumed(ENDED_BY_SIGNAL, f"process {killed.process}", None, 1, reserved))
        ],
        "devices": killed.uses(cards),
        "uses_cuda": True,
    }
