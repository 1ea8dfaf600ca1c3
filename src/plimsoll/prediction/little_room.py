"""Warns if a script that fits leaves very little memory free, or may not fit.

It may not fit if the CUDA context was estimated, and the real context may be so much larger that
the script does not fit. It also may not fit if the range of its peak ends above the card's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.units import format_size
from plimsoll.prediction.assumed import CHANGES_SIZES, deciding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plimsoll.prediction.assumed import Assumed
    from plimsoll.prediction.parts import PredictionParts

MAY_TAKE_MORE = (
    "the size of the CUDA context or the peak is an estimate, and it may be larger by more than "
    "stays free"
)
"""Why a script may not fit, if `doubt` is not None."""
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


def doubt(p: PredictionParts) -> str | None:
    """Says why the script may not fit a real card, although the prediction says that it fits.

    Returns None if it surely fits, or does not fit. Also returns None for a serving engine, which
    adapts to the memory that it finds, and if memory may spill.
    """
    if not p.fits or p.serving or p.shared:
        return None
    return _context_doubt(p) or _range_doubt(p)


def sure_room_bytes(p: PredictionParts, cached_bytes: int) -> int:
    """Returns the memory that stays free with the largest context or the largest peak.

    It is the smaller of the two, and negative if memory may be missing.

    Args:
        p: The prediction.
        cached_bytes: The part of reserved memory that counts as free.
    """
    if p.serving or p.shared:
        return p.headroom_bytes + cached_bytes
    more = range_more_bytes(p)
    left = p.total_bytes - p.device_used_bytes + cached_bytes - _context_more_bytes(p)[1]
    return min(p.headroom_bytes - more if more else p.headroom_bytes + cached_bytes, left)


def cached_bytes(p: PredictionParts) -> int:
    """Returns how much of reserved memory PyTorch can do without; 0 if unknown."""
    least = p.peak_reserved_bytes if p.least_reserved_bytes is None else p.least_reserved_bytes
    return max(0, p.peak_reserved_bytes - least)


def range_more_bytes(p: PredictionParts) -> int:
    """Returns how much more the script may take than `device_used_bytes`, by the peak's range.

    Returns 0 if nothing is uncertain that can make a request fail. If only NCCL's memory is
    uncertain, the range of reserved memory does not count: PyTorch can release what is cached.
    """
    bounds, nccl = p.device_used_range_bytes, p.nccl_range_bytes
    if bounds is None:
        return 0
    if _that_change_sizes(p):
        return max(0, bounds[1] - p.device_used_bytes)
    return 0 if nccl is None else max(0, nccl[1] - p.nccl_bytes)


def _that_change_sizes(p: PredictionParts) -> list[Assumed]:
    return [each for each in p.assumptions if each.what in CHANGES_SIZES]


def _context_more_bytes(p: PredictionParts) -> tuple[int, int]:
    """Returns the number of contexts, and how much more they may take than is estimated."""
    contexts = max((card.processes for card in p.shared_cards), default=1)
    most = p.context_bytes if p.context_most_bytes is None else p.context_most_bytes
    return contexts, contexts * (most - p.context_bytes)


def _context_doubt(p: PredictionParts) -> str | None:
    left = p.total_bytes - p.device_used_bytes + cached_bytes(p)
    contexts, more = _context_more_bytes(p)
    if p.context_most_bytes is None or not 0 <= left < more:
        return None
    each = "the CUDA context" if contexts == 1 else f"the CUDA contexts of {contexts} processes"
    whole = format_size(contexts * p.context_bytes)
    return f"{each}, estimated at {whole}, may take {format_size(more)} more"


def _range_doubt(p: PredictionParts) -> str | None:
    more = range_more_bytes(p)
    if not 0 <= p.headroom_bytes < more:
        return None
    by = deciding(_that_change_sizes(p))
    return f"it may take {format_size(more)} more" + (f", depending on {by}" if by else "")


def spare_caveats(p: PredictionParts) -> Iterator[str]:
    """Yields a sentence if a script that fits leaves very little memory, or may not fit."""
    left, whole, of = _room(p)
    if not p.fits or p.serving is not None:
        return
    if (why_not := doubt(p)) is not None:
        yield f"It may not fit: {spare_words(p)}, and {why_not}."
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
