"""Formats the GPU memory of one process as a table with a row for each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plimsoll.base.layout import table
from plimsoll.base.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plimsoll.prediction.parts import GpuUse

_HEADS = ("GPU", "allocated", "reserved", "on the card", "to spare")
_LEFT_OUT = ("on the card", "allocated")
"""The columns that are left out in a narrow terminal, in this order."""


def gpu_rows(uses: Sequence[GpuUse], width: int | None = None) -> Iterator[str]:
    """Yields a row for each GPU, without columns whose values are all unknown.

    Args:
        uses: The memory that the process used on each GPU.
        width: The columns of the terminal; None does not limit the width of the rows.
    """
    columns = zip(_HEADS, *map(_cells, uses), strict=True)
    known = [column for column in columns if any(cell != "?" for cell in column[1:])]
    yield from table(list(zip(*known, strict=True)), width=width, indent="  ", optional=_LEFT_OUT)


def _cells(use: GpuUse) -> tuple[str, ...]:
    sizes = (use.peak_allocated_bytes, use.peak_reserved_bytes, use.card_bytes, use.headroom_bytes)
    return ("?" if use.device is None else str(use.device), *map(_size, sizes))


def _size(size: int | None) -> str:
    if size is None:
        return "?"
    return ("-" if size < 0 else "") + format_size(abs(size))
