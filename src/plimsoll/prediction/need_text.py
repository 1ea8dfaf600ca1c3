"""Says how much memory a script lacks on a card, what makes it fit there, and on which cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_range, format_size
from plimsoll.prediction.allocator_need import fitting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.parts import PredictionParts

_MOST_CARDS = 8


def lack_text(p: PredictionParts) -> str:
    """Says how much memory a script that does not fit lacks.

    If only a run with unlimited memory measured the need, the lack is at most as large as in that
    run: on a card of limited size, PyTorch releases cached memory before a request fails.
    """
    lack = f"{format_size(abs(p.headroom_bytes))} too little"
    return f"up to {lack}" if _is_bound(p) else lack


def rescue_text(p: PredictionParts) -> str:
    """Names the allocators and settings with which the script fits, as in "; with NAME it fits"."""
    ways = [need.way for need in fitting(p.needs)] if p.fits is False else []
    return f"; with {' or '.join(ways)} it fits" if ways else ""


def needed_bytes(p: PredictionParts) -> int:
    """Returns the least memory of a card on which the script fits, if known.

    Otherwise returns the memory that nvidia-smi would show on a card with unlimited memory.
    """
    return p.device_used_bytes if p.needed_bytes is None else p.needed_bytes


def need_figure(p: PredictionParts) -> str:
    """Returns the memory that a script that does not fit would need, with its range."""
    needed, bounds = needed_bytes(p), p.device_used_range_bytes
    if bounds is not None and p.needed_bytes is not None:
        bounds = min(needed, _least_bytes(p)), max(needed, bounds[1])
    return f"{format_size(needed):>12}{format_range(bounds)}" + ", at most" * _is_bound(p)


def endless_text(p: PredictionParts) -> str:
    """Says that reserved memory is that of a card without a limit, if a need is known beside it."""
    is_less = p.needed_bytes is not None and p.needed_bytes < p.device_used_bytes
    return ", if the card had no limit" if is_less else ""


def other_cards_text(p: PredictionParts) -> Iterator[str]:
    """Yields a line with the cards on which a script that does not fit would fit."""
    if p.fits is not False:
        return
    if p.no_other_cards is not None:
        yield (
            f"This run does not show whether other cards fit, because {p.no_other_cards}. To try "
            "them: plimsoll predict --gpu NAME --gpu NAME …"
        )
    cards = [card for card in p.other_cards if card.fits and card.gpu != p.gpu]
    shown = sorted(cards, key=lambda card: (card.total_bytes, card.gpu))[:_MOST_CARDS]
    if not shown:
        return
    marks = {
        card.gpu: "?" if card.may_not_fit else "*" * (card.headroom_bytes < 0) for card in shown
    }
    names = ", ".join(card.gpu + marks[card.gpu] for card in shown)
    more = ", …" if len(cards) > len(shown) else ""
    notes = {
        "*": "* only because cached memory goes back to the driver",
        "?": "? perhaps not: CUDA's context or the peak may be larger",
    }
    said = "; ".join(text for mark, text in notes.items() if mark in marks.values())
    alone = " without shared memory" if p.shared else ""
    yield f"It should fit{alone} on {names}{more}{f' ({said})' if said else ''}"


def _is_bound(p: PredictionParts) -> bool:
    """Returns whether the need is known only as an upper bound."""
    return (
        p.fits is False
        and p.headroom_bytes < 0
        and p.needed_bytes is None
        and p.shared is None
        and p.serving is None
        and p.peak_allocated_bytes < p.peak_reserved_bytes
    )


def _least_bytes(p: PredictionParts) -> int:
    """Returns the least memory that the script's live blocks can need, with what is outside."""
    allocated, nccl = p.peak_allocated_range_bytes, p.nccl_range_bytes
    least = p.peak_allocated_bytes if allocated is None else allocated[0]
    return p.context_bytes + least + (p.nccl_bytes if nccl is None else nccl[0])
