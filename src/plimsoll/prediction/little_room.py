"""Warns if a script that fits leaves very little memory free.

Also warns if the CUDA context was estimated, and the real context may be so much larger that the
script does not fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.parts import PredictionParts

ESTIMATED_CONTEXT = (
    "the size of the CUDA context is an estimate, and the context may take more than stays free"
)
"""Why a script may not fit, if `context_doubt` is not None."""
LITTLE = 0.01
"""If less than this share of the memory stays free, the script may not fit in another run."""


def spare_text(left_bytes: int, whole_bytes: int, *, of: str) -> str:
    """Says how much memory stays free, and whether that is very little.

    Args:
        left_bytes: The free memory.
        whole_bytes: The whole memory.
        of: The name of the whole memory, such as "the card".
    """
    left = f"{format_size(left_bytes)} to spare"
    if not is_thin(left_bytes, whole_bytes):
        return left
    return f"only {left}, {left_bytes / whole_bytes:.1%} of {of}"


def is_thin(left_bytes: int, whole_bytes: int) -> bool:
    """Returns whether so little memory stays free that another run may not fit."""
    return 0 <= left_bytes < LITTLE * whole_bytes


def thin_line(left_bytes: int, whole_bytes: int, *, of: str) -> Iterator[str]:
    """Yields a warning if very little memory stays free. Arguments as for `spare_text`."""
    if is_thin(left_bytes, whole_bytes):
        yield f"  {spare_text(left_bytes, whole_bytes, of=of)}; --headroom 5% leaves more"


def spare_words(p: PredictionParts) -> str:
    """Says how much memory stays free if the script fits, and whether that is very little."""
    left, whole, of = _room(p)
    return format_size(left) + " to spare" if of is None else spare_text(left, whole, of=of)


def context_doubt(p: PredictionParts) -> str | None:
    """Says why the script may not fit a real card, although the prediction says that it fits.

    The reason is that the size of the CUDA context is an estimate, which may be too low. Returns
    None if the script does not fit, if the context was measured, or if even the largest context
    leaves enough memory. Also returns None for a serving engine, which adapts to its context, and
    if memory may spill.
    """
    left = p.total_bytes - p.device_used_bytes
    if not p.fits or p.context_most_bytes is None or p.serving or p.shared or left < 0:
        return None
    contexts = max((card.processes for card in p.shared_cards), default=1)
    more = contexts * (p.context_most_bytes - p.context_bytes)
    if more <= left:
        return None
    each = "the CUDA context" if contexts == 1 else f"the CUDA contexts of {contexts} processes"
    whole = format_size(contexts * p.context_bytes)
    return f"{each}, estimated at {whole}, may take {format_size(more)} more"


def spare_caveats(p: PredictionParts) -> Iterator[str]:
    """Yields a sentence if a script that fits leaves very little memory, or may not fit."""
    left, whole, of = _room(p)
    if not p.fits or p.serving is not None:
        return
    if (doubt := context_doubt(p)) is not None:
        yield f"It may not fit: {spare_words(p)}, and {doubt}."
    elif of is not None and is_thin(left, whole):
        yield f"It has {spare_words(p)}."


def _room(p: PredictionParts) -> tuple[int, int, str | None]:
    """Returns the memory that stays free, the whole memory, and a name of the whole.

    The name is None if the card's memory is not the limit, because requests spill.
    """
    left = p.headroom_bytes
    if p.shared is not None:
        return left, p.total_bytes, None
    if p.limit_bytes is not None and left < p.total_bytes - p.device_used_bytes:
        return left, p.limit_bytes, "the script's limit"
    return left, p.total_bytes + p.used_bytes, "the card"
