"""The part of a card that must stay free."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from plimsoll.base.errors import InputError
from plimsoll.base.units import parse_size

_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True)
class Headroom:
    """The memory that must stay free: a number of bytes, or a part of the card's memory.

    Attributes:
        size_bytes: The number of bytes.
        part: The part of the card's memory, from 0 to 1.
    """

    size_bytes: int = 0
    part: float = 0.0

    @classmethod
    def parse(cls, text: int | str | None) -> Self:
        """Parses "2GiB", "5%" or bytes.

        Raises:
            InputError: If the text has another form.
        """
        if text is None or text in (0, "0"):
            return cls()
        percent = _PERCENT.fullmatch(text) if isinstance(text, str) else None
        if percent is None:
            return cls(size_bytes=parse_size(text))
        part = float(percent[1]) / 100
        if part >= 1:
            raise InputError(f"a headroom of {percent[1]}% leaves nothing of the card")
        return cls(part=part)

    def of(self, total_bytes: int) -> int:
        """Returns the bytes that must stay free on a card with this memory."""
        return self.size_bytes + round(self.part * total_bytes)
